"""Families whose rows move items: changes of shape, selections, and exchanges for them."""
