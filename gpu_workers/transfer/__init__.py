"""Mooncake: immutable, version-stamped copies that readers pull and verify."""
