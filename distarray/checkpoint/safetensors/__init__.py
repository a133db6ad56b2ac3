"""Files of the safetensors format, written and read by all ranks."""
