"""Pure: canonical form, prefix tree, extraction, packing."""
