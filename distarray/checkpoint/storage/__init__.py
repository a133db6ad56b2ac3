"""Storage of checkpoints: values and chunks of arrays in files, directories, and the manifest."""
