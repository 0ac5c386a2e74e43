"""``gyre tree``: a rollout as the tree of its tokens, with what is trained and what is masked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from app.cli.call_table import RolloutName, statuses, version_range, version_spans, words
from app.cli.output import AsJson, Cells, print_json, print_table, stdout, table_width
from app.cli.reading import reading_rollout
from app.cli.tree_lines import TreeLine, lines, sampled_on_path
from db import rollout_queries

Record = Mapping[str, Any]
Full = Annotated[bool, typer.Option("--full", help="Print a line per node instead of folding chains.")]
DEEPEST = 12
"""Most levels that are indented; of deeper ones only the number is printed."""
ROOM_FOR_REUSE = 100
"""Columns of a terminal that has room for how many calls reused each line."""
NUMBERS = frozenset({"calls", "tokens", "sampled", "targets", "masked", "reused"})


def tree(rollout: RolloutName, as_json: AsJson = False, full: Full = False) -> None:
    """Draw the token tree of a rollout: which paths are trained, and what is masked on them."""
    with reading_rollout(rollout) as (session, name):
        selected = rollout_queries.trajectories(session, name)
        nodes = rollout_queries.tree(session, name, selected)
        outcome = rollout_queries.outcome(session, name)
        attempts = rollout_queries.attempts(session, name)
        calls = rollout_queries.calls(session, name)
    if as_json:
        print_json(nodes)
        return
    console = stdout()
    console.print(Text(f"{name.removeprefix('run/')}: {_outcome_in_words(outcome)}", style="bold"))
    if not nodes:
        console.print(f"{statuses(calls)}: no tokens recorded yet")
        return
    console.print(f"{statuses(calls)}; {_tokens_in_words(nodes, selected)}")
    if selected:
        _print_paths(console, selected, nodes)
    drawn: list[TreeLine] = []
    deepest = DEEPEST
    for attempt in attempts:
        own = list(lines([n for n in nodes if n["attempt_id"] == attempt["id"]], folded=not full))
        ended = ", ".join(str(attempt[key]) for key in ("status", "end_reason", "failure") if attempt[key])
        heading = f"\nattempt {attempt['number']}: {ended}"
        console.print(heading if own else f"{heading}, no tokens", markup=False)
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


def _tokens_in_words(nodes: Sequence[Record], selected: Sequence[Record]) -> str:
    sampled = [node for node in nodes if node["kind"] == "sampled"]
    num_tokens, num_sampled = (sum(node["num_tokens"] for node in part) for part in (nodes, sampled))
    side = sum(node["num_tokens"] for node in sampled if node["role"] == "side")
    targets = sum(node["targets"] for node in sampled)
    counted = f"{num_tokens:,} tokens in the tree, {num_sampled:,} sampled"
    if not selected:
        return f"{counted}, {side:,} of them by side calls"
    rest = num_sampled - targets - side
    return f"{counted}: {targets:,} targets, {side:,} by side calls, {rest:,} not selected"


def _print_paths(console: Console, selected: Sequence[Record], nodes: Sequence[Record]) -> None:
    by_id = {node["id"]: node for node in nodes}
    rows: list[Cells] = []
    for path in selected:
        sampled = sampled_on_path(path["leaf_node_id"], by_id)
        row = {
            "path": str(path["path"]),
            "role": words(path["role"]),
            "ends at": str(by_id[path["leaf_node_id"]]["index"]),
            "tokens": f"{path['num_tokens']:,}",
            "sampled": f"{sampled:,}",
            "targets": f"{path['num_targets']:,}",
            "masked": f"{sampled - path['num_targets']:,}",
        }
        rows.append(row)
    print_table(console, rows, list(rows[0]), numbers=NUMBERS)


def _draw(console: Console, drawn: Sequence[TreeLine], *, full: bool) -> int:
    """Print the lines of an attempt; return how many levels are indented."""
    marks = _marks(console)
    rows = [_cells(line, marks, full=full) for line in drawn]
    always = ["role", "kind" if full else "calls", "tokens", "sampled", "targets", "policy"]
    wanted = [*always, *(["reused"] if console.width >= ROOM_FOR_REUSE else []), "finish", "paths"]
    titles = [title for title in wanted if title in always or any(row[title] for row in rows)]
    room = console.width - table_width(rows, titles, fold_cells=True) - 1
    deepest = _deepest(drawn, marks, room)
    for row, line in zip(rows, drawn, strict=True):
        place = _place(line, marks, deepest)
        row["nodes"] = place if cell_len(place) <= room else place.replace(" @", "\n@")
    styles = ["dim" if ln.role == "side" else "" if ln.target_of is None else "green" for ln in drawn]
    print_table(console, rows, ["nodes", *titles], numbers=NUMBERS, styles=styles)
    return deepest


def _deepest(drawn: Sequence[TreeLine], marks: Mapping[str, str], room: int) -> int:
    """Return the most levels at which every place fits on one line, or else up to its ``@``."""
    for end in ("\n", " @"):
        for levels in range(DEEPEST, 0, -1):
            if all(cell_len(_place(line, marks, levels).partition(end)[0]) <= room for line in drawn):
                return levels
    return 1


def _place(line: TreeLine, marks: Mapping[str, str], deepest: int) -> str:
    """Return the nodes of a line behind at most ``deepest`` levels and the number of the other levels."""
    first, last = line.nodes[0], line.nodes[-1]
    left_out = f"+{line.depth - deepest} " if line.depth > deepest else ""
    number = str(first["index"]) if first is last else f"{first['index']}..{last['index']}"
    left = "" if line.left is None else f" @{line.left['index']}+{first['parent_offset']}"
    return f"{marks['level'] * min(line.depth, deepest)}{left_out}{marks[line.beginning]}{number}{left}"


def _cells(line: TreeLine, marks: Mapping[str, str], *, full: bool) -> dict[str, str]:
    sampled, first = line.sampled, line.nodes[0]
    targets = sum(node["targets"] for node in sampled)
    return {
        "role": words(line.role),
        "kind": first["kind"],
        "calls": f"{len(sampled):,}" if sampled else "",
        "tokens": f"{line.tokens():,}",
        "sampled": f"{line.tokens('sampled'):,}" if sampled else "",
        "targets": f"{targets:,}" if sampled else "",
        "policy": version_spans(first["versions"]) if full else version_range(sampled),
        "reused": f"{first['reused_by']:,}" if first["reused_by"] else "",
        "finish": (first["finish_reason"] or "") if full else _unusual_ends(sampled),
        "paths": _paths(line, marks["end"]),
    }


def _paths(line: TreeLine, end: str) -> str:
    """Return the paths through a line: ``0`` trains what was sampled on it, ``(1)`` only runs through."""
    ends = {leaf["path"] for leaf in line.nodes[-1]["leaf_of"]}
    paths = [
        (str(path) if path == line.target_of else f"({path})") + (end if path in ends else "")
        for path in line.nodes[-1]["paths"]
    ]
    return " ".join(paths) or "-"


def _unusual_ends(sampled: Sequence[Record]) -> str:
    """Return the reasons of answers that did not stop by themselves, such as ``length`` or ``2xlength``."""
    reasons = Counter(node["finish_reason"] for node in sampled)
    unusual = [(reason, number) for reason, number in reasons.items() if reason not in (None, "stop")]
    return " ".join(reason if number == 1 else f"{number}x{reason}" for reason, number in sorted(unusual))


def _marks(console: Console) -> dict[str, str]:
    if console.encoding.startswith("utf"):
        return {"level": "│ ", "root": "● ", "branch": "↳ ", "next": "  ", "end": "◂"}
    return {"level": "| ", "root": "* ", "branch": "> ", "next": "  ", "end": "<"}


def _legend(marks: Mapping[str, str], drawn: Sequence[TreeLine], deepest: int, *, full: bool) -> str:
    explained = [
        f"{marks['root']}begins a conversation, {marks['branch']}branches off the line above, "
        "other lines continue it.",
        f"Path 0 trains what was sampled on a line; (0) only runs through it, masked; 0{marks['end']} ends "
        "there.",
    ]
    if any(line.left for line in drawn):
        explained.append("@2+500 leaves node 2 after 500 of its tokens.")
    if any(line.depth > deepest for line in drawn):
        explained.append("+3 stands for three more branches that there is no room to indent.")
    if not full:
        explained.append("Chains are folded; --full prints each node.")
    return "\n".join(explained)
