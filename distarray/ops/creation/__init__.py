"""Creation: arrays of one value, of ranges, of plain values; each process makes its own block."""
