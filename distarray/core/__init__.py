"""The one engine that runs every operation on distributed arrays."""
