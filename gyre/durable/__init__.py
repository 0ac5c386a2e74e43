"""Temporal: client, converter, typed activity names and options, error mapping. No business logic."""
