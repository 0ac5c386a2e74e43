"""The gateway's fixtures: a run in a real Postgres, a scripted engine, the gateway in a thread."""

from tests.gateway.conftest import engine, model_dir, tokenizer, world

__all__ = ["engine", "model_dir", "tokenizer", "world"]
