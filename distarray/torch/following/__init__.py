"""Layouts followed through torch functions: one mode, and the rules that it applies."""
