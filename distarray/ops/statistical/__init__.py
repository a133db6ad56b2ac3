"""Statistics: reductions, moments, scans."""
