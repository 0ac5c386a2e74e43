"""Commands that read: one JSON document with stable keys on stdout, ids in both forms, clear refusals."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import update

from db.models import ExecutionRow, QueryGroupRow, RunRow
from db.session import Database, transaction
from tests.cli.conftest import ROLLOUT, RUN

Gyre = Callable[..., tuple[int, str, str]]


@pytest.mark.usefixtures("populated")
def test_show_json_has_its_stable_keys(gyre: Gyre) -> None:
    code, out, _ = gyre("show", RUN, "--json")
    shown = json.loads(out)
    assert code == 0
    assert list(shown)[:7] == [
        "run", "status", "updates", "policy_version", "account", "dispositions", "checks",
    ]  # fmt: skip
    assert shown["account"] == {"dispatched": 1, "trained": 1, "ready": 0, "running": 0, "dropped": 0}
    assert shown["dispositions"] == {"scored": 1, "placeholder": 1, "excluded": 0}
    assert shown["checks"] == {
        "account_balances": True,
        "every_execution_disposed": None,
        "every_attempt_sealed": None,
        "no_call_in_flight": None,
        "every_version_stored": True,
    }
    assert shown["mean_reward"] == 0.25


def test_a_lost_group_unbalances_the_account(gyre: Gyre, populated: Database) -> None:
    with transaction(populated) as session:
        session.execute(update(QueryGroupRow).values(index=1))
    _, out, _ = gyre("show", RUN, "--json")
    assert json.loads(out)["checks"]["account_balances"] is False


def test_a_stopped_run_runs_nothing_and_skips_the_checks_of_finished_runs(
    gyre: Gyre, populated: Database
) -> None:
    def set_status(status: str) -> None:
        with transaction(populated) as session:
            session.execute(update(RunRow).values(status=status))

    with transaction(populated) as session:
        session.execute(
            update(ExecutionRow).values(status="running", disposition=None, reward_id=None, detail=None)
        )
    set_status("running")
    assert json.loads(gyre("show", RUN, "--json")[1])["running"] == 2
    set_status("stopped")
    shown = json.loads(gyre("show", RUN, "--json")[1])
    assert shown["running"] == 0
    assert shown["checks"]["every_execution_disposed"] is None
    lines = [line.split() for line in gyre("show", RUN)[1].splitlines()]
    assert ["every", "execution", "disposed", "-"] in lines


def test_a_finished_run_with_an_undisposed_rollout_fails_its_check(gyre: Gyre, populated: Database) -> None:
    with transaction(populated) as session:
        session.execute(update(RunRow).values(status="finished"))
        session.execute(
            update(ExecutionRow).values(status="running", disposition=None, reward_id=None, detail=None)
        )
    _, out, _ = gyre("show", RUN, "--json")
    assert json.loads(out)["checks"]["every_execution_disposed"] is False


def test_a_failure_is_shown_as_it_is(gyre: Gyre, populated: Database) -> None:
    failure = "cell 0 [/] ended: [bold]exit 1"
    with transaction(populated) as session:
        session.execute(update(RunRow).values(status="failed", failure=failure))
    code, out, _ = gyre("show", RUN)
    assert code == 0
    assert failure in out


@pytest.mark.usefixtures("populated")
@pytest.mark.parametrize("name", [ROLLOUT, ROLLOUT.removeprefix("run/"), f"{ROLLOUT}/attempt/0/call/1"])
def test_calls_and_tree_take_ids_in_every_form(gyre: Gyre, name: str) -> None:
    code, out, _ = gyre("calls", name, "--json")
    assert code == 0
    assert [call["versions"] for call in json.loads(out)] == [None, None]
    code, out, _ = gyre("tree", name, "--json")
    assert code == 0
    assert [(node["kind"], node["num_tokens"], node["reused_by"]) for node in json.loads(out)] == [
        ("context", 5, 1), ("sampled", 3, 1), ("context", 4, 0), ("sampled", 2, 0),
    ]  # fmt: skip


@pytest.mark.usefixtures("populated")
@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (("runs",), RUN),
        (("show", f"run/{RUN}"), "1 trained"),
        (("groups", RUN), "0.250"),
        (("rollouts", RUN), "placeholder"),
        (("calls", ROLLOUT), "in flight"),
        (("tree", ROLLOUT), "attempt 0: sealed, exited"),
        (("tree", ROLLOUT, "--full"), "0x1 1x2"),
    ],
)
def test_people_get_a_table(gyre: Gyre, arguments: tuple[str, ...], seen: str) -> None:
    code, out, err = gyre(*arguments)
    assert (code, err) == (0, "")
    assert seen in out


@pytest.mark.usefixtures("populated")
def test_json_rows_hold_counts_and_rewards(gyre: Gyre) -> None:
    assert [row["run"] for row in json.loads(gyre("runs", "--json")[1])] == [RUN]
    (group,) = json.loads(gyre("groups", RUN, "--json")[1])
    assert (group["scored"], group["placeholder"], group["mean_reward"]) == (1, 1, 0.25)
    first, second = json.loads(gyre("rollouts", RUN, "--json")[1])
    assert (first["reward"], first["attempts"], first["end_reason"]) == (0.25, 1, "exited")
    assert second["detail"] == "provision: no image"


@pytest.mark.usefixtures("populated")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("show", "nobody"), "gyre: no services in"),
        (("tree", "seen"), "names no rollout"),
        (("show", "\udcff"), "no run '\\udcff'"),
        (("show", "../seen"), "no run '../seen'"),
        (("groups", "a" * 300), "no run 'aaaa"),
        (("audit", "../seen"), "no run '../seen'"),
        (("calls", "x/../seen/group/0/rollout/0"), "names no rollout"),
        (("tree", "Seen/group/0/rollout/0"), "no run 'Seen'"),
        (("tree", f"{ROLLOUT}/nothing"), "names no rollout"),
        (("calls", f"{ROLLOUT}/attempt/7"), f"no attempt '{ROLLOUT}/attempt/7'"),
        (("tree", f"{ROLLOUT}/attempt/0/node/99"), f"no node '{ROLLOUT}/attempt/0/node/99'"),
        (("calls", f"{RUN}/group/9/rollout/9"), "no rollout 'run/seen/group/9/rollout/9'"),
        (("shwo", RUN), "No such command 'shwo'. Did you mean 'show'?"),
        (("show",), "Missing argument"),
        (("show", RUN, "--wrong"), "No such option"),
    ],
)
def test_bad_usage_exits_two_with_nothing_on_stdout(
    gyre: Gyre, arguments: tuple[str, ...], sentence: str
) -> None:
    code, out, err = gyre(*arguments)
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())


@pytest.mark.usefixtures("state_dir")
def test_an_unreachable_database_is_one_sentence(gyre: Gyre, state_dir: Path) -> None:
    record = state_dir / "runs" / RUN / "processes.json"
    document = json.loads(record.read_text())
    document["services"]["postgres_dsn"] = "postgresql://nobody@127.0.0.1:1/gyre"
    record.write_text(json.dumps(document))
    code, out, err = gyre("show", RUN)
    assert (code, out) == (2, "")
    assert err.startswith("gyre: Postgres cannot be read")
    assert err.count("\n") == 1


def test_ps_and_down_where_nothing_runs(gyre: Gyre, state_dir: Path) -> None:
    assert json.loads(gyre("ps", "--json")[1]) == {"keeper_pid": None, "processes": []}
    assert json.loads(gyre("down", "--json")[1]) == {"stopped": False}
