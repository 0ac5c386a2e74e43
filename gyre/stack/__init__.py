"""Starts the embedded services and the processes of a run."""
