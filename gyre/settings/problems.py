"""First problem of a document that pydantic refuses, in one sentence and without secrets."""

from pydantic import ValidationError

SECRETS = ("postgres_dsn", "postgres_password", "s3_access_key", "s3_secret_key")
"""Keys whose values must never be shown."""
LONGEST = 80
"""Number of characters after which a shown value is cut."""


def first_problem(error: ValidationError) -> str:
    """Return a sentence such as ``run.updates = 0: Input should be greater than or equal to 1``."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    kind, value = first["type"], first["input"]
    if kind == "extra_forbidden":
        return f"unknown key '{key}'"
    if kind == "missing":
        return f"missing key '{key}'"
    reason = first["msg"].removeprefix("Value error, ")
    if kind in ("model_type", "model_attributes_type"):
        reason = "it must be a section with keys of its own"
    if not key:
        return reason
    if key.rpartition(".")[2] in SECRETS or isinstance(value, dict | list):
        return f"{key}: {reason}"
    text = repr(value)
    shown = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return f"{key} = {shown}: {reason}"
