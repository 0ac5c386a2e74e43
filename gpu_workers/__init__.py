"""A cell: supervisor, engine, trainer, transfer. Knows nothing of workflows."""
