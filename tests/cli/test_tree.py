"""`gyre tree` and `gyre calls` show which paths are trained, what is masked, and what went wrong."""

import json
from collections.abc import Callable
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli import output
from app.cli.tree_lines import lines
from db import rollout_queries
from db.session import Database, transaction
from tests.cli.conftest import ROLLOUT, RUN
from tests.grown import Grown

Gyre = Callable[..., tuple[int, str, str]]
BATCH = f"run/{RUN}/batch/1"


def project() -> Grown:
    """Return thirty turns, a sub-agent, a summary with its successors, a title and a repeated call."""
    grown = Grown(ROLLOUT)
    grown.call(None, 40, 6, role="side")
    main = [grown.call(None, 900, 25)]
    for turn in range(1, 30):
        main.append(grown.call(main[-1], 70, 25, version=turn // 10))
    sub = [grown.call(None, 300, 30, role="subagent", version=2)]
    sub.append(grown.call(sub[0], 300, 30, role="subagent", version=2))
    grown.call(main[19], 0, 44, version=1, finish="length")
    grown.failed("no engine answered within 600 s")
    summary = grown.call(main[-1], 120, 200, role="main_summary", version=2)
    after = [grown.call(2, 400, 31, offset=500, version=3)]
    after.append(grown.call(after[0], 60, 20, version=3, num_malformed_tool_calls=2))
    grown.in_flight()
    grown.select(BATCH, main[-1], main)
    grown.select(BATCH, after[-1], after)
    grown.select(BATCH, summary, [summary], "main_summary")
    grown.select(BATCH, sub[-1], sub, "subagent")
    return grown


@pytest.fixture
def grown(populated: Database) -> Grown:
    made = project()
    with transaction(populated) as session:
        made.write(session)
    return made


def table(out: str, first_title: str) -> dict[str, list[str]]:
    """Return the rows of the last table whose first title is given: first cell -> the words after it."""
    rows = out[out.rindex(f"\n{first_title} ") :].splitlines()[2:]
    cells = (row.replace("│", "").replace("↳", "").replace("●", "").split() for row in rows)
    return {row[0]: row[1:] for row in cells if row}


@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize("width", [80, 200])
def test_a_reader_sees_what_is_trained_and_what_is_masked(
    gyre: Gyre, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(output, "WIDE", width)
    code, out, err = gyre("tree", ROLLOUT)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= width
    words = " ".join(out.split())
    assert "41 calls (37 committed, 1 failed, 3 in flight)" in words
    assert "1,116 sampled: 1,061 targets, 6 by side calls, 49 not selected" in words
    paths = table(out[: out.index("attempt 0")], "path")
    assert paths["2"] == ["main", "summary", "68", "4,000", "950", "200", "750"]
    drawn = table(out, "nodes")
    assert drawn["3..41"][:5] == ["main", "20", "1,830", "500", "500"]
    assert drawn["3..41"][-2:] == ["0", "(2)"]
    assert drawn["69..72"][0] == "@2+500"
    assert drawn["66"][3:] == ["44", "0", "1", "length", "-"]
    assert drawn["0..1"][-1] == "-"
    assert drawn["62..65"][0] == "subagent"
    assert drawn["62..65"][-1] == "3◂"


@pytest.mark.usefixtures("grown")
def test_full_prints_a_line_per_node(gyre: Gyre) -> None:
    _, out, _ = gyre("tree", ROLLOUT, "--full")
    drawn = table(out, "nodes")
    assert drawn["72"] == ["main", "sampled", "20", "20", "20", "3", "stop", "1◂"]
    assert drawn["71"] == ["main", "context", "60", "(1)"]
    assert set(map(str, range(73))) <= drawn.keys()


@pytest.mark.usefixtures("grown")
def test_tree_json_has_its_stable_keys(gyre: Gyre) -> None:
    nodes = json.loads(gyre("tree", ROLLOUT, "--json")[1])
    assert {tuple(node) for node in nodes} == {
        (
            "id", "attempt_id", "index", "call_id", "parent_id", "parent_offset", "position", "kind",
            "num_tokens", "role", "versions", "finish_reason", "reused_by", "targets", "target_of", "paths",
            "leaf_of",
        )
    }  # fmt: skip
    by_id = {node["id"]: node for node in nodes}
    leaf = by_id[f"{ROLLOUT}/attempt/1/node/61"]
    assert (leaf["targets"], leaf["target_of"], leaf["paths"]) == (25, 0, [0, 2])
    assert leaf["leaf_of"] == [
        {
            "path": 0, "role": "main", "num_tokens": 3680, "num_targets": 750, "batch_id": BATCH,
            "version": 1, "advantage": 0.0,
        }
    ]  # fmt: skip
    assert sum(node["targets"] for node in nodes) == 1061


@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize("width", [80, 200])
def test_calls_show_what_was_reused_and_what_failed(
    gyre: Gyre, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(output, "WIDE", width)
    code, out, err = gyre("calls", ROLLOUT)
    assert (code, err) == (0, "")
    assert "2 malformed tool calls" in " ".join(out.split())
    listed = table(out, "call")
    roomy = ["anthropic", "committed"] if width == 200 else []
    # In the order of the columns: input, reused, encoded, output, policy, malformed, finish.
    numbers = ["991", "931", "60", "20", "3", "2", "stop"]
    assert listed["1/37"] == ["main", *roomy, *numbers]
    assert "1/34 failed: no engine answered within 600 s" in " ".join(out.split())


@pytest.mark.usefixtures("grown")
def test_calls_json_has_its_stable_keys(gyre: Gyre) -> None:
    rows = json.loads(gyre("calls", ROLLOUT, "--json")[1])
    assert {tuple(row) for row in rows} == {
        (
            "id", "attempt", "index", "status", "role", "dialect", "finish_reason", "num_input_tokens",
            "num_reused_tokens", "num_encoded_tokens", "num_cached_tokens", "num_output_tokens",
            "num_malformed_tool_calls", "versions", "engine_ms", "sampled_node_id", "started_at",
            "committed_at", "delivered_at", "failure",
        )
    }  # fmt: skip
    assert [row["status"] for row in rows].count("in_flight") == 3


@pytest.mark.usefixtures("populated")
def test_a_rollout_without_calls_is_one_sentence(gyre: Gyre) -> None:
    other = f"{ROLLOUT[:-1]}1"
    assert gyre("calls", other) == (0, "no model calls yet\n", "")
    code, out, _ = gyre("tree", other)
    assert code == 0
    assert out.splitlines() == [
        f"{other.removeprefix('run/')}: placeholder, provision: no image, in no batch",
        "no calls: no tokens recorded yet",
    ]
    assert json.loads(gyre("tree", other, "--json")[1]) == []


def test_a_rollout_of_two_thousand_nodes_fits_on_a_screen(gyre: Gyre, populated: Database) -> None:
    grown, last = Grown(ROLLOUT), None
    for _ in range(1000):
        last = grown.call(last, 50, 20)
    with transaction(populated) as session:
        grown.write(session)
    _, out, _ = gyre("tree", ROLLOUT)
    assert len(out.splitlines()) < 20
    assert table(out, "nodes")["0..1999"][:4] == ["main", "1,000", "70,000", "20,000"]
    nodes = json.loads(gyre("tree", ROLLOUT, "--json")[1])
    assert nodes[-2000]["reused_by"] == 999


@st.composite
def rows_of_trees(draw: st.DrawFn) -> list[dict]:
    grown = Grown(ROLLOUT)
    for _ in range(draw(st.integers(1, 12))):
        after = draw(st.sampled_from([None, *range(len(grown.nodes))])) if grown.nodes else None
        size = 1 if after is None else grown.nodes[after]["num_tokens"]
        offset = draw(st.one_of(st.none(), st.integers(1, size)))
        context = draw(st.integers(1 if after is None else 0, 3))
        role = draw(st.sampled_from(["main", "subagent", "side"]))
        grown.call(after, context, draw(st.integers(1, 3)), offset=offset, role=role)
    marks = {"leaf_of": [], "paths": [], "targets": 0, "target_of": None, "reused_by": 0, "role": "main"}
    return [{**marks, **node} for node in grown.nodes]


@given(rows_of_trees())
def test_each_node_is_drawn_once_below_the_one_it_continues(nodes: list[dict]) -> None:
    for folded in (True, False):
        drawn = list(lines(nodes, folded=folded))
        order = [node["id"] for node in chain.from_iterable(line.nodes for line in drawn)]
        assert sorted(order) == sorted(node["id"] for node in nodes)
        for place, name in enumerate(order):
            parent = next(node["parent_id"] for node in nodes if node["id"] == name)
            assert parent is None or parent in order[:place]


def test_reuse_counts_equal_a_walk_over_every_input(populated: Database) -> None:
    grown = project()
    with transaction(populated) as session:
        grown.write(session)
        nodes = rollout_queries.tree(session, ROLLOUT, [])
        calls = rollout_queries.calls(session, ROLLOUT)
    by_id = {node["id"]: node for node in nodes}
    walked = dict.fromkeys(by_id, 0)
    for call in calls:
        sampled = by_id.get(call["sampled_node_id"] or "")
        name = sampled["parent_id"] if sampled else None
        while name is not None:
            walked[name] += by_id[name]["call_id"] != call["id"]
            name = by_id[name]["parent_id"]
    own = {n["id"]: n["reused_by"] for n in nodes if "/attempt/1/" in n["id"]}
    assert own == {name: walked[name] for name in own}
