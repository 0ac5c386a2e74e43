"""Tables on consoles of several widths: every number and every word stays whole in any room."""

import io
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from app.cli import output
from app.cli.call_table import print_calls
from app.cli.output import print_rows, print_table, table_width
from app.cli.show import print_groups, print_rollouts
from db.session import Database, transaction
from tests.cli.conftest import ROLLOUT, RUN
from tests.grown import Grown

Gyre = Callable[..., tuple[int, str, str]]
Row = dict[str, Any]
NAME = "my-first-run"
TASK = "spell-words-into-files"
WIDTHS = [80, 100, 120, 200]


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(output, "WIDE", request.param)
    return request.param


def rollout_row(index: int, **columns: Any) -> Row:
    row = {
        "id": f"run/{NAME}/group/12/rollout/{index}", "task": TASK, "purpose": "train", "status": "terminal",
        "disposition": "scored", "reward": 0.5, "attempts": 1, "calls": 312, "sampled_tokens": 1234567,
        "end_reason": "time_limit", "detail": None,
    }  # fmt: skip
    return row | columns


def group_row(index: int, **columns: Any) -> Row:
    row = {
        "id": f"run/{NAME}/group/{index}", "task": TASK, "purpose": "train", "phase": None,
        "status": "assigned", "policy_version": 12, "scored": 8, "placeholder": 0, "excluded": 0,
        "executions": 8, "mean_reward": 0.25,
    }  # fmt: skip
    return row | columns


def call_row(index: int, role: str, **columns: Any) -> Row:
    row = {
        "attempt": 1, "index": index, "role": role, "dialect": "anthropic", "status": "committed",
        "num_input_tokens": 1198123, "num_reused_tokens": 1197100, "num_encoded_tokens": 1023,
        "num_output_tokens": 12345, "versions": [[12, 10000], [13, 2345]], "num_malformed_tool_calls": 1,
        "finish_reason": "length", "engine_ms": 123456,
        "delivered_at": datetime(2026, 1, 1, tzinfo=UTC), "failure": None,
    }  # fmt: skip
    return row | columns


def line_of(out: str, name: str) -> list[str]:
    """Return the words behind ``name`` on the first line that begins with it."""
    return next(line.split()[1:] for line in out.splitlines() if line.split()[:1] == [name])


def assert_fits(out: str, width: int) -> None:
    assert max(map(len, out.splitlines())) <= width


def assert_whole(out: str, words: Iterable[str]) -> None:
    assert set(words) <= set(out.split())


WORD = st.text("abcdefgh", min_size=1, max_size=14)
TEXT = st.lists(WORD, max_size=6).map(" ".join)
TITLES = ("id", "end reason", "detail", "mean reward", "n")


@given(
    rows=st.lists(st.fixed_dictionaries(dict.fromkeys(TITLES, TEXT)), min_size=1, max_size=4),
    room=st.integers(20, 120),
)
def test_any_table_keeps_its_words_whole_and_fits_where_they_do(
    rows: list[dict[str, str]], room: int
) -> None:
    console = Console(file=io.StringIO(), width=room, highlight=False)
    print_table(console, rows, TITLES, numbers={"n"})
    out = console.file.getvalue()  # type: ignore[attr-defined]
    words = [
        word for text in (*TITLES, *(row[title] for row in rows for title in TITLES)) for word in text.split()
    ]
    assert sorted(out.split()) == sorted(words)
    if table_width(rows, TITLES, fold_cells=True) <= room:
        assert_fits("\n".join(map(str.rstrip, out.splitlines())), room)
    if table_width(rows, TITLES) <= room:
        # Titles take two lines at most, and an empty row is an empty line.
        assert len(out.splitlines()) <= len(rows) + 2


def test_a_rollout_takes_one_line(capsys: pytest.CaptureFixture[str], width: int) -> None:
    reason = "no valid reward within the budget of three evaluations"
    excluded = rollout_row(1, disposition="excluded", reward=None, detail=reason, attempts=3)
    running = rollout_row(2, status="running", disposition=None, reward=None, end_reason=None)
    print_rollouts([rollout_row(0), excluded, running, rollout_row(3, disposition="placeholder")])
    out = capsys.readouterr().out
    assert_fits(out, width)
    assert_whole(out, [TASK, "train", "3", *reason.split()])
    expected = [["scored", "0.500"], ["excluded", "-"], ["running", "-"], ["placeholder", "0.500"]]
    for index, words in enumerate(expected):
        line = line_of(out, f"{NAME}/group/12/rollout/{index}")
        assert set(line) >= {*words, "312", "1,234,567"}
        assert " ".join(line).replace("_", " ").count("time limit") == (index != 2)


def test_a_long_detail_is_printed_under_the_table(capsys: pytest.CaptureFixture[str], width: int) -> None:
    detail = "provision: [Errno 28] no space left on device, " * 6
    print_rollouts([rollout_row(0), rollout_row(1, detail=detail)])
    out = capsys.readouterr().out
    assert_fits(out, width)
    printed = out[out.index(f"{NAME}/group/12/rollout/1 detail: ") :]
    assert printed.split()[2:] == detail.split()


def test_a_name_that_leaves_no_room_cuts_no_number(capsys: pytest.CaptureFixture[str], width: int) -> None:
    name = f"run/{'a' * 40}/group/12/rollout/3"
    print_rollouts([rollout_row(0, id=name)])
    line = line_of(capsys.readouterr().out, name.removeprefix("run/"))
    assert set(line) >= {"scored", "0.500", "312", "1,234,567"}
    assert "time limit" in " ".join(line).replace("_", " ")


def test_a_group_takes_one_line(capsys: pytest.CaptureFixture[str], width: int) -> None:
    lost = group_row(120, scored=5, placeholder=1, excluded=2, status="trained")
    print_groups([group_row(0, purpose="heldout", phase="before"), group_row(7), lost])
    out = capsys.readouterr().out
    assert_fits(out, width)
    assert_whole(out, ["heldout", "before", "train"])
    for index, words in {0: ["assigned"], 7: ["assigned"], 120: ["trained"]}.items():
        assert set(line_of(out, f"{NAME}/group/{index}")) >= {TASK, "12", "0.250", *words}
    printed = [line for line in out.splitlines() if line.startswith(f"{NAME}/group/120")]
    assert {"1", "2"} <= set(" ".join(printed).split())


def test_columns_without_values_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_rollouts([rollout_row(0)])
    print_groups([group_row(0)])
    out = capsys.readouterr().out
    assert "purpose" in out
    assert "detail" not in out
    assert "phase" not in out


def test_a_run_takes_one_line(capsys: pytest.CaptureFixture[str], width: int) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC).astimezone()
    row = {"run": NAME, "status": "finished", "updates": 1020, "mean_reward": 0.25, "running": 0}
    print_rows([row | {"created_at": at, "finished_at": at}], [*row, "created_at", "finished_at"], empty="")
    out = capsys.readouterr().out
    assert_fits(out, width)
    day, minute = f"{at:%Y-%m-%d %H:%M}".split()
    assert line_of(out, NAME) == ["finished", "1,020", "0.250", "0", day, minute, day, minute]


def test_brackets_are_not_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": "s3", "detail": "[/] [Errno 28] [bold]"}], ("name", "detail"), empty="")
    assert line_of(capsys.readouterr().out, "s3") == ["[/]", "[Errno", "28]", "[bold]"]


def test_process_ids_have_no_thousands_separators(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": "s3", "pid": 54321, "ports": [65432, 5432]}], ("name", "pid", "ports"), empty="")
    assert line_of(capsys.readouterr().out, "s3") == ["54321", "65432", "5432"]


def test_a_call_takes_one_line_and_spans_stay_whole(capsys: pytest.CaptureFixture[str], width: int) -> None:
    failed = call_row(1202, "side", status="failed", finish_reason=None, versions=None, failure="no engine")
    print_calls("run/x/group/0/rollout/0", [call_row(1200, "main"), call_row(1201, "subagent"), failed])
    out = capsys.readouterr().out
    assert_fits(out, width)
    spans = ["12x10000", "13x2345"] if width >= 120 else ["12-13"]
    for index, role in ((1200, "main"), (1201, "subagent")):
        line = line_of(out, f"1/{index}")
        assert set(line) >= {role, "1,198,123", "1,197,100", "1,023", "12,345", "1", "length", *spans}
    assert {"side", "failed"} <= set(line_of(out, "1/1202"))


def test_wider_consoles_show_more_columns_of_calls(capsys: pytest.CaptureFixture[str], width: int) -> None:
    print_calls(
        "run/x/group/0/rollout/0", [call_row(1200, "subagent_summary"), call_row(1201, "main_summary")]
    )
    out = capsys.readouterr().out
    assert_fits(out, width)
    assert_whole(out, ["subagent", "main", "summary", "length", "12,345"])
    table = out[out.index("\ncall ") :]
    assert ("anthropic" in table) == (width == 200)
    assert ("committed" in table) == (width >= 100)


def deep(num_branches: int) -> Grown:
    """Return a conversation from which a sub-agent branches off, from which another one does, and so on."""
    grown = Grown(ROLLOUT)
    last = grown.call(None, 123456, 65432, version=11, finish="length")
    targets = [last]
    for _ in range(num_branches):
        last = grown.call(
            last, 130000, 58321, offset=52821, role="subagent_summary", version=12, finish="length"
        )
        targets.append(last)
    for target in targets[-12:]:
        grown.select(f"run/{RUN}/batch/1", last, [target])
    return grown


@pytest.mark.parametrize("num_branches", [3, 6, 14])
@pytest.mark.parametrize("full", [False, True])
def test_a_deep_tree_has_whole_numbers(
    gyre: Gyre, populated: Database, width: int, num_branches: int, full: bool
) -> None:
    grown = deep(num_branches)
    with transaction(populated) as session:
        grown.write(session)
    code, out, _ = gyre("tree", ROLLOUT, *(["--full"] if full else []))
    drawn = out[out.rindex("\nnodes ") :]
    assert code == 0
    assert_fits(out, width)
    numbers = ["130,000", "58,321"] if full else ["188,888", "188,321", "65,432", "58,321"]
    assert_whole(drawn, [*numbers, "11", "12", "main", "subagent", "summary", "length"])
    assert_whole(drawn, [f"@{2 * index + 1}+52821" for index in range(num_branches)])
    assert_whole(
        drawn, map(str, range(2 * num_branches)) if full else [f"{2 * num_branches}..{2 * num_branches + 1}"]
    )
    assert {"role", "policy", "finish", "paths"} <= set(drawn.splitlines()[1].split())
    rows = drawn[: drawn.index("begins a conversation")]
    assert rows.count("188,321") == (0 if full else num_branches)
    assert rows.count("+52821") == num_branches


@pytest.mark.parametrize("width", [80], indirect=True)
def test_levels_without_room_are_counted(gyre: Gyre, populated: Database, width: int) -> None:
    with transaction(populated) as session:
        deep(14).write(session)
    _, out, _ = gyre("tree", ROLLOUT)
    (deepest,) = [line for line in out.splitlines() if " 28..29 " in line]
    shown, left_out = deepest.count("│"), int(deepest[deepest.index("+") :].split()[0])
    assert shown + left_out == 14
    assert "branches that there is no room to indent" in " ".join(out.split())
