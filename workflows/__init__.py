"""Durable orchestration: deterministic, one class a file."""
