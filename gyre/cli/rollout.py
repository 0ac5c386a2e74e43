"""``gyre calls`` and ``gyre tree``: one rollout, call by call and as the tree of its tokens."""

from typing import Annotated, Any

import typer
from rich.tree import Tree

from db import queries
from gyre.cli.output import AsJson, print_json, print_rows, stdout
from gyre.cli.reading import reading_rollout

Rollout = Annotated[str, typer.Argument(help="NAME/group/0/rollout/0, with or without `run/`.")]


def calls(rollout: Rollout, as_json: AsJson = False) -> None:
    """List the model calls of a rollout, over all its attempts."""
    with reading_rollout(rollout) as (session, name):
        rows = queries.calls(session, name)
    if as_json:
        print_json(rows)
        return
    shown = [
        row | {"call": row["id"].removeprefix(f"{name}/"), "versions": spans(row["versions"])} for row in rows
    ]
    columns = (
        "call", "status", "role", "finish_reason", "num_input_tokens", "num_reused_tokens",
        "num_cached_tokens", "num_output_tokens", "versions", "engine_ms", "failure",
    )  # fmt: skip
    print_rows(shown, columns, empty="no model calls yet")


def tree(rollout: Rollout, as_json: AsJson = False) -> None:
    """Draw the token tree of a rollout: each node once, under the node it continues."""
    with reading_rollout(rollout) as (session, name):
        rows = queries.tree(session, name)
    if as_json:
        print_json(rows)
        return
    root = Tree(name)
    branches: dict[str | None, Tree] = {}
    for row in rows:  # parents come first
        parent = branches.get(row["parent_id"]) or _attempt_branch(root, branches, row)
        branches[row["id"]] = parent.add(_label(row))
    stdout().print(root if rows else f"{name}: no tokens recorded yet")


def _attempt_branch(root: Tree, branches: dict[str | None, Tree], row: dict[str, Any]) -> Tree:
    attempt = row["attempt_id"]
    if attempt not in branches:
        branches[attempt] = root.add(f"attempt {attempt.rpartition('/')[2]}")
    return branches[attempt]


def _label(row: dict[str, Any]) -> str:
    node = row["id"].rpartition("/")[2]
    parts = [f"{node} {row['role']} {row['kind']}", f"{row['num_tokens']} tokens"]
    if row["versions"]:
        parts.append(f"version {spans(row['versions'])}")
    if row["finish_reason"]:
        parts.append(str(row["finish_reason"]))
    if row["reused_by"]:
        parts.append(f"reused by {row['reused_by']} call{'s' * (row['reused_by'] > 1)}")
    label = ", ".join(parts)
    return f"[green]{label}[/]" if row["kind"] == "sampled" else label


def spans(versions: list[Any] | None) -> str | None:
    """``[[3, 10], [4, 2]]`` as ``3x10 4x2``: policy version x tokens; a single span as its version."""
    if not versions:
        return None
    if len(versions) == 1:
        return str(versions[0][0])
    return " ".join(f"{version}x{tokens}" for version, tokens in versions)
