"""The embedded engine: torch and transformers behind the engine protocol."""
