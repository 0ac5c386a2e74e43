"""Isolation, harness supervisor, gateway forwarder, capture and restore. Knows nothing of Temporal."""
