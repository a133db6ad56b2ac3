"""Changes of shape: axes, reshape, joining and repeating."""
