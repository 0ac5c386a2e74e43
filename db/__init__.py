"""Postgres: models, sessions and one repository a table group. All SQL of Gyre is here."""
