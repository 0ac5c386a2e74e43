"""Megatron Core training of one cell."""
