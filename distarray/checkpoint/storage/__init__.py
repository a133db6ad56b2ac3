"""What lies on the disk: values and chunks of arrays in files, directories, and the manifest."""
