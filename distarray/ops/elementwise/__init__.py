"""Functions item by item, each a row of the family of a ufunc."""
