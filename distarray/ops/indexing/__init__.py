"""Reading and writing of items by an index."""
