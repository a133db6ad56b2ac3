"""Families: functions that make rows, their docstrings, and the registry of all functions."""
