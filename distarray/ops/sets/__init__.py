"""Sets: the different items of arrays, and which of them others have."""
