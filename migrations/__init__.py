"""Alembic migrations: the schema, step by step.

env.py      connect Alembic to the models
versions/   one migration per schema change
"""
