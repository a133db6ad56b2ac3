"""Cross entropy of logits that are cut along their classes."""
