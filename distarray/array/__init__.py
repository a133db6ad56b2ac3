"""The distributed array and its operators, protocols, printing and conversions."""
