"""State dicts, optimizer states and checkpoints, with the names and shapes of one process."""
