"""``gyre calls`` and ``gyre tree``: one rollout, call by call and as the tree of its tokens."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from app.cli.output import AsJson, Cells, cell, fitting, narrowest, print_json, print_table, stdout
from app.cli.reading import reading_rollout
from app.cli.tree_lines import TreeLine, lines, sampled_on_path
from db import rollout_queries

Record = Mapping[str, Any]
Rollout = Annotated[str, typer.Argument(help="NAME/group/0/rollout/0, with or without `run/`.")]
Full = Annotated[bool, typer.Option("--full", help="A line for each node: chains are not folded.")]
DEEPEST = 12
"""Levels that are indented where there is room; of deeper ones the number is told."""
NARROW = 100
"""Columns of a terminal that has no room for everything."""
SPACIOUS = 120
"""Columns of a terminal that has room for how many tokens each policy version sampled."""
NUMBERS = frozenset(
    {
        "input",
        "reused",
        "encoded",
        "output",
        "malformed",
        "engine ms",
        "calls",
        "tokens",
        "sampled",
        "targets",
        "masked",
    }
)
ROOMY = ("dialect", "delivered", "engine ms", "status")
"""Columns of calls that a narrow terminal does without, the first of them first."""


def calls(rollout: Rollout, as_json: AsJson = False) -> None:
    """List the model calls of a rollout, over all its attempts."""
    with reading_rollout(rollout) as (session, name):
        rows = rollout_queries.calls(session, name)
    if as_json:
        print_json(rows)
    elif rows:
        print_calls(name, rows)
    else:
        print("no model calls yet")


def print_calls(name: str, rows: Sequence[Record]) -> None:
    console = stdout()
    console.print(f"{name.removeprefix('run/')}: {_calls_in_words(rows)}")
    shown = [_call_cells(row, whole_spans=console.width >= SPACIOUS) for row in rows]
    # A column in which nothing stands is left out; the line above says that there is nothing.
    filled = [title for title in shown[0] if any(row[title] not in ("-", "0") for row in shown)]
    titles = fitting(shown, filled, ROOMY, console.width)
    print_table(console, shown, titles, numbers=NUMBERS, styles=map(_call_style, rows))
    for row in rows:
        if row["failure"]:
            console.print(f"{_call_name(row)} failed: {row['failure']}", markup=False)


def _call_name(row: Record) -> str:
    return f"{row['attempt']}/{row['index']}"


def _call_cells(row: Record, *, whole_spans: bool) -> dict[str, str]:
    values = {
        "call": _call_name(row),
        "role": _words(row["role"]),
        "dialect": row["dialect"],
        "status": _words(row["status"]),
        "input": f"{row['num_input_tokens']:,}",
        "reused": f"{row['num_reused_tokens']:,}",
        "encoded": f"{row['num_encoded_tokens']:,}",
        "output": f"{row['num_output_tokens']:,}",
        "policy": spans(row["versions"]) if whole_spans else _versions([row]),
        "malformed": f"{row['num_malformed_tool_calls']:,}",
        "finish": row["finish_reason"] if row["status"] == "committed" else _words(row["status"]),
        "engine ms": None if row["engine_ms"] is None else f"{row['engine_ms']:,}",
        "delivered": None if row["delivered_at"] is None else row["delivered_at"].astimezone().strftime("%X"),
    }
    return {title: cell(value or None) for title, value in values.items()}


def _words(name: str) -> str:
    """A role or a status, which may be broken between its words."""
    return name.replace("_", " ")


def _call_style(row: Record) -> str:
    if row["status"] == "failed":
        return "red"
    return "dim" if row["role"] == "side" else ""


def _calls_in_words(rows: Sequence[Record]) -> str:
    committed = [row for row in rows if row["status"] == "committed"]
    tokens = ", ".join(
        f"{sum(row[f'num_{name}_tokens'] for row in committed):,} {name}"
        for name in ("input", "reused", "encoded", "output")
    )
    malformed = sum(row["num_malformed_tool_calls"] for row in committed)
    dialects = ", ".join(sorted({row["dialect"] for row in rows}))
    counted = f"tokens: {tokens}; {_several(malformed, 'malformed tool call')}"
    return f"{_statuses(rows)} in {dialects}; {counted}"


def _statuses(rows: Sequence[Record]) -> str:
    by_status = Counter(row["status"] for row in rows)
    parts = [f"{by_status[s]} {_words(s)}" for s in sorted(by_status)]
    return f"{_several(len(rows), 'call')} ({', '.join(parts)})" if parts else "no calls"


def tree(rollout: Rollout, as_json: AsJson = False, full: Full = False) -> None:
    """Draw the token tree of a rollout: which paths are trained, and what is masked on them."""
    with reading_rollout(rollout) as (session, name):
        selected = rollout_queries.trajectories(session, name)
        nodes = rollout_queries.tree(session, name, selected)
        outcome = rollout_queries.outcome(session, name)
        attempts = rollout_queries.attempts(session, name)
        made = rollout_queries.calls(session, name)
    if as_json:
        print_json(nodes)
        return
    console = stdout()
    console.print(Text(f"{name.removeprefix('run/')}: {_outcome_in_words(outcome)}", style="bold"))
    if not nodes:
        console.print(f"{_statuses(made)}: no tokens recorded yet")
        return
    console.print(f"{_statuses(made)}; {_tokens_in_words(nodes, selected)}")
    if selected:
        _print_paths(console, selected, nodes)
    drawn: list[TreeLine] = []
    deepest = DEEPEST
    for attempt in attempts:
        own = list(lines([n for n in nodes if n["attempt_id"] == attempt["id"]], folded=not full))
        ended = f"\nattempt {attempt['number']}: {_attempt_in_words(attempt)}"
        console.print(ended if own else f"{ended}, no tokens", markup=False)
        if own:
            deepest = min(deepest, _draw(console, own, full=full))
        drawn += own
    console.print(f"\n{_legend(_marks(console), drawn, deepest, full=full)}", style="dim")


def _outcome_in_words(outcome: Record) -> str:
    parts = [outcome["disposition"] or outcome["status"]]
    if outcome["reward"] is not None:
        parts.append(f"reward {outcome['reward']:.3f}")
    if outcome["detail"]:
        parts.append(outcome["detail"])
    if outcome["batch_id"]:
        done = "trained into" if outcome["batch_status"] == "trained" else "in the batch of"
        parts.append(f"{done} version {outcome['version']}, advantage {outcome['advantage']:+.3f}")
    else:
        parts.append("in no batch")
    return ", ".join(parts)


def _attempt_in_words(attempt: Record) -> str:
    return ", ".join(str(attempt[key]) for key in ("status", "end_reason", "failure") if attempt[key])


def _tokens_in_words(nodes: Sequence[Record], selected: Sequence[Record]) -> str:
    sampled = [node for node in nodes if node["kind"] == "sampled"]
    total, drawn = (sum(node["num_tokens"] for node in part) for part in (nodes, sampled))
    side = sum(node["num_tokens"] for node in sampled if node["role"] == "side")
    targets = sum(node["targets"] for node in sampled)
    counted = f"{total:,} tokens in the tree, {drawn:,} sampled"
    if not selected:
        return f"{counted}, {side:,} of them of side calls"
    return f"{counted}: {targets:,} targets, {side:,} of side calls, {drawn - targets - side:,} not selected"


def _print_paths(console: Console, selected: Sequence[Record], nodes: Sequence[Record]) -> None:
    by_id = {node["id"]: node for node in nodes}
    titles = ("path", "role", "ends at", "tokens", "sampled", "targets", "masked")
    rows: list[Cells] = []
    for path in selected:
        leaf, targets = path["leaf_node_id"], path["num_targets"]
        sampled = sampled_on_path(leaf, by_id)
        numbers = (path["num_tokens"], sampled, targets, sampled - targets)
        names = (str(path["path"]), _words(path["role"]), str(by_id[leaf]["index"]))
        rows.append(dict(zip(titles, (*names, *map("{:,}".format, numbers)), strict=True)))
    print_table(console, rows, titles, numbers=NUMBERS)


def _draw(console: Console, drawn: Sequence[TreeLine], *, full: bool) -> int:
    """Print the lines of an attempt; how many levels of them are indented."""
    marks = _marks(console)
    rows = [_line_cells(line, marks, full=full) for line in drawn]
    always = ["role", "kind" if full else "calls", "tokens", "sampled", "targets", "policy"]
    wanted = [*always, *(["reused"] if console.width >= NARROW else []), "finish", "paths"]
    titles = [title for title in wanted if title in always or any(row[title] for row in rows)]
    deepest = _deepest(drawn, marks, console.width - narrowest(rows, titles) - 1)
    for row, line in zip(rows, drawn, strict=True):
        row["nodes"] = _place(line, marks, deepest)
    print_table(console, rows, ["nodes", *titles], numbers=NUMBERS, styles=map(_line_style, drawn))
    return deepest


def _deepest(drawn: Sequence[TreeLine], marks: Mapping[str, str], room: int) -> int:
    """How many levels can be indented so that each place takes one line, or else one before its ``@``."""
    for end in ("\n", " @"):
        for levels in range(DEEPEST, 0, -1):
            if all(len(_place(line, marks, levels).partition(end)[0]) <= room for line in drawn):
                return levels
    return 1


def _place(line: TreeLine, marks: Mapping[str, str], deepest: int) -> str:
    """The nodes of a line behind at most ``deepest`` levels and the number of the others."""
    first, last = line.nodes[0], line.nodes[-1]
    left_out = f"+{line.depth - deepest} " if line.depth > deepest else ""
    number = str(first["index"]) if first is last else f"{first['index']}..{last['index']}"
    left = "" if line.left is None else f" @{line.left['index']}+{first['parent_offset']}"
    return f"{marks['level'] * min(line.depth, deepest)}{left_out}{marks[line.beginning]}{number}{left}"


def _line_cells(line: TreeLine, marks: Mapping[str, str], *, full: bool) -> dict[str, str]:
    sampled, first = line.sampled, line.nodes[0]
    targets = sum(node["targets"] for node in sampled)
    return {
        "role": _words(line.role),
        "kind": first["kind"],
        "calls": f"{len(sampled):,}" if sampled else "",
        "tokens": f"{line.tokens():,}",
        "sampled": f"{line.tokens('sampled'):,}" if sampled else "",
        "targets": f"{targets:,}" if sampled else "",
        "policy": (spans(first["versions"]) or "") if full else _versions(sampled),
        "reused": f"{first['reused_by']:,}" if first["reused_by"] else "",
        "finish": (first["finish_reason"] or "") if full else _cut(sampled),
        "paths": _paths(line, marks["end"]),
    }


def _versions(sampled: Sequence[Record]) -> str:
    """``3`` or ``3-5``: the policy versions that nodes or calls were sampled by."""
    seen = {version for node in sampled for version, _ in node["versions"] or []}
    return "" if not seen else str(min(seen)) if len(seen) == 1 else f"{min(seen)}-{max(seen)}"


def _paths(line: TreeLine, end: str) -> str:
    """``0`` trains what was sampled here, ``(1)`` only runs through."""
    ends = {leaf["path"] for leaf in line.nodes[-1]["leaf_of"]}
    told = [
        (str(path) if path == line.target_of else f"({path})") + (end if path in ends else "")
        for path in line.nodes[-1]["paths"]
    ]
    return " ".join(told) or "-"


def _cut(sampled: Sequence[Record]) -> str:
    """The answers of a chain that did not end by themselves: ``length`` or ``2xlength``."""
    reasons = Counter(node["finish_reason"] for node in sampled)
    cut = [(reason, number) for reason, number in reasons.items() if reason not in (None, "stop")]
    return " ".join(reason if number == 1 else f"{number}x{reason}" for reason, number in sorted(cut))


def _line_style(line: TreeLine) -> str:
    if line.role == "side":
        return "dim"
    return "green" if line.target_of is not None else ""


def _marks(console: Console) -> dict[str, str]:
    if console.encoding.startswith("utf"):
        return {"level": "│ ", "root": "● ", "branch": "↳ ", "next": "  ", "end": "◂"}
    return {"level": "| ", "root": "* ", "branch": "> ", "next": "  ", "end": "<"}


def _legend(marks: Mapping[str, str], drawn: Sequence[TreeLine], deepest: int, *, full: bool) -> str:
    explained = [
        f"{marks['root']}begins a conversation, {marks['branch']}branches off the line above, "
        "other lines continue it.",
        f"Path 0 trains what was sampled on a line, (0) only runs through it, masked; 0{marks['end']} ends "
        "here.",
    ]
    if any(line.left for line in drawn):
        explained.append("@2+500 leaves node 2 after 500 of its tokens.")
    if any(line.depth > deepest for line in drawn):
        explained.append("+3 stands for three more branches that there is no room to indent.")
    if not full:
        explained.append("Chains are folded: --full shows each node.")
    return "\n".join(explained)


def _several(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def spans(versions: list[Any] | None) -> str | None:
    """``[[3, 10], [4, 2]]`` as ``3x10 4x2``: policy version x tokens; a single span as its version."""
    if not versions:
        return None
    if len(versions) == 1:
        return str(versions[0][0])
    return " ".join(f"{version}x{tokens}" for version, tokens in versions)
