"""The supervisor outlives its starter, can be attached to, enforces its limit and leaves nothing behind."""

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.stack.orphans import end_all
from gyre.contracts.errors import SandboxFailed
from gyre.contracts.lifecycle import EndReason
from gyre.host.processes import ProcessIdentity, identify, is_alive, send_signal
from sandbox import isolation
from sandbox.harness_process import HarnessSpec, kill, poll, slug, start_or_attach
from sandbox.supervise import LOG_BYTES
from tests.sandbox.conftest import Attempts, needs_bwrap, wait_exited, wait_until

WORK = "echo x >> starts; while [ ! -e go ]; do sleep 0.05; done; echo end"


def recorded(spec: HarnessSpec) -> dict:
    return json.loads((spec.directory / "status.json").read_text())


def wait_running(spec: HarnessSpec) -> None:
    wait_until(lambda: poll(spec.directory).state == "running")


def wait_started(spec: HarnessSpec) -> None:
    wait_until(lambda: (spec.directory / "workspace" / "starts").exists())


def test_an_absent_attempt_can_be_polled_and_killed(tmp_path: Path) -> None:
    assert poll(tmp_path).state == "absent"
    assert kill(tmp_path / "never").state == "absent"


def test_exit_code_and_output_are_kept(attempts: Attempts) -> None:
    status, output = attempts.run("echo out; echo err >&2; exit 7")
    assert (status.end_reason, status.exit_code, status.failure) == (EndReason.EXITED, 7, None)
    assert output == "out\nerr\n"


def test_starting_again_attaches(attempts: Attempts) -> None:
    spec = attempts.spec("/bin/sh", "-c", WORK)
    start_or_attach(spec)
    wait_started(spec)
    assert start_or_attach(spec).state == "running"
    (spec.directory / "workspace" / "go").touch()
    assert wait_exited(spec.directory).exit_code == 0
    assert start_or_attach(spec).state == "exited"
    assert (spec.directory / "workspace" / "starts").read_text() == "x\n"


def test_of_many_simultaneous_starters_one_starts(attempts: Attempts) -> None:
    spec = attempts.spec("/bin/sh", "-c", WORK)
    context = multiprocessing.get_context("spawn")
    starters = [context.Process(target=start_or_attach, args=(spec,)) for _ in range(4)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(30)
    assert all(starter.exitcode == 0 for starter in starters)
    (spec.directory / "workspace" / "go").touch()
    wait_exited(spec.directory)
    assert (spec.directory / "workspace" / "starts").read_text() == "x\n"


def test_a_harness_survives_its_worker_and_the_next_one_attaches(attempts: Attempts) -> None:
    """After kill -9 of its parent a container ran on as an orphan, and nothing could be reconstructed."""
    spec = attempts.spec("/bin/sh", "-c", WORK)
    worker = _worker_that_starts(spec)
    wait_started(spec)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    assert start_or_attach(spec).state == "running"
    (spec.directory / "workspace" / "go").touch()
    assert wait_exited(spec.directory).exit_code == 0


def test_an_unobserved_end_is_read_before_anything_is_called_lost(attempts: Attempts) -> None:
    """Adoption marked a run as failed before it read the output that was already recorded."""
    spec = attempts.spec("/bin/sh", "-c", "echo work > done; exit 3")
    worker = _worker_that_starts(spec)
    wait_until(lambda: (spec.directory / "status.json").exists())
    worker.kill()
    worker.wait()
    wait_exited(spec.directory)
    status = start_or_attach(spec)
    assert (status.end_reason, status.exit_code) == (EndReason.EXITED, 3)


def test_the_time_limit_ends_an_endless_harness_while_no_worker_lives(attempts: Attempts) -> None:
    """Endless commands ran hours past their deadline, and sandboxes leaked when their worker died."""
    spec = attempts.spec("/bin/sh", "-c", "trap '' TERM; echo x > starts; while :; do :; done", limit_s=1)
    worker = _worker_that_starts(spec)
    wait_started(spec)
    worker.kill()
    worker.wait()
    status = wait_exited(spec.directory)
    assert (status.end_reason, status.exit_code) == (EndReason.TIME_LIMIT, None)
    assert status.seconds >= 1
    # Its work is still there to be scored.
    assert (spec.directory / "workspace" / "starts").exists()


@needs_bwrap
def test_no_process_survives_the_harness(attempts: Attempts) -> None:
    spec = attempts.spec(
        "/bin/sh", "-c", "(setsid sleep 977 &) ; (trap '' HUP TERM; sleep 977) & sleep 0.2; exit 0"
    )
    start_or_attach(spec)
    wait_exited(spec.directory)
    assert not _running("sleep\0977\0")
    status = recorded(spec)
    assert not is_alive(
        ProcessIdentity(status["sandbox_pid"], f"{status['boot_id']}/{status['sandbox_ticks']}")
    )


def test_kill_returns_when_all_processes_are_gone_and_may_be_repeated(attempts: Attempts) -> None:
    """A cancelled agent went on running and making calls while the verifier scored its work."""
    spec = attempts.spec("/bin/sh", "-c", "trap '' TERM; echo x > starts; (setsid sleep 978 &); sleep 978")
    start_or_attach(spec)
    wait_started(spec)
    wait_until(lambda: _running("sleep\0978\0"))
    status = kill(spec.directory)
    assert not _running("sleep\0978\0")
    assert (status.state, status.end_reason) == ("exited", EndReason.CANCELLED)
    assert kill(spec.directory) == status


def test_kill_as_soon_as_it_starts(attempts: Attempts) -> None:
    spec = attempts.spec("/bin/sh", "-c", "sleep 979")
    start_or_attach(spec)
    assert kill(spec.directory).state == "exited"
    assert not _running("sleep\0979\0")


@pytest.mark.parametrize("trap", ["", "trap 'exit 0' TERM; "])
def test_down_cancels_a_working_harness_and_it_never_passes_for_finished(
    attempts: Attempts, trap: str
) -> None:
    """The sandbox's processes come first in the list, and one of them exits as if its work were done."""
    spec = attempts.spec("/bin/sh", "-c", f"{trap}echo x > starts; while :; do sleep 0.05; done")
    start_or_attach(spec)
    wait_started(spec)
    supervisor = psutil.Process(recorded(spec)["supervisor_pid"])
    family = [*reversed(supervisor.children(recursive=True)), supervisor]
    found = [identity for member in family if (identity := identify(member.pid))]
    assert len(found) > 1
    end_all(found, 10.0)
    assert not any(is_alive(process) for process in found)
    status = poll(spec.directory)
    assert (status.state, status.end_reason, status.exit_code) == ("exited", EndReason.CANCELLED, None)


def test_a_signal_that_reaches_the_sandbox_before_its_supervisor_is_a_cancellation(
    attempts: Attempts,
) -> None:
    spec = attempts.spec("/bin/sh", "-c", "echo x > starts; while :; do sleep 0.05; done")
    start_or_attach(spec)
    wait_started(spec)
    supervisor = psutil.Process(recorded(spec)["supervisor_pid"])
    (child,) = supervisor.children()
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    supervisor.send_signal(signal.SIGTERM)
    assert wait_exited(spec.directory).end_reason == EndReason.CANCELLED


def test_a_harness_ended_by_a_signal_without_a_stop_request_has_exited(attempts: Attempts) -> None:
    status, _ = attempts.run("kill -TERM $$")
    assert (status.end_reason, status.exit_code) == (EndReason.EXITED, 128 + signal.SIGTERM)


@needs_bwrap
def test_a_killed_supervisor_takes_its_sandbox_along_and_nothing_starts_again(attempts: Attempts) -> None:
    """A lost container was silently restarted blank in mid-episode."""
    spec = attempts.spec("/bin/sh", "-c", "echo x >> starts; sleep 980")
    start_or_attach(spec)
    wait_started(spec)
    os.kill(recorded(spec)["supervisor_pid"], signal.SIGKILL)
    status = wait_exited(spec.directory)
    assert status.end_reason == EndReason.SANDBOX_LOST
    assert "supervisor died" in str(status.failure)
    wait_until(lambda: not _running("sleep\0980\0"))
    kill(spec.directory)
    assert not _running("sleep\0980\0")
    assert start_or_attach(spec).end_reason == EndReason.SANDBOX_LOST
    assert (spec.directory / "workspace" / "starts").read_text() == "x\n"


def test_kill_ends_the_orphans_of_a_killed_supervisor_without_a_namespace(attempts: Attempts) -> None:
    spec = attempts.spec(
        "/bin/sh", "-c", "echo x > starts; (setsid sleep 981 &); sleep 981", kind=isolation.PLAIN
    )
    start_or_attach(spec)
    wait_until(lambda: _running("sleep\0981\0"))
    wait_running(spec)
    os.kill(recorded(spec)["supervisor_pid"], signal.SIGKILL)
    wait_exited(spec.directory)
    kill(spec.directory)
    wait_until(lambda: not _running("sleep\0981\0"))


def test_a_plain_process_is_limited_and_ended(attempts: Attempts) -> None:
    spec = attempts.spec(
        "/bin/sh", "-c", "pwd; (setsid sleep 982 &); sleep 982", kind=isolation.PLAIN, limit_s=1
    )
    start_or_attach(spec)
    assert wait_exited(spec.directory).end_reason == EndReason.TIME_LIMIT
    assert (spec.directory / "output.log").read_text().strip() == str(spec.directory / "workspace")
    wait_until(lambda: not _running("sleep\0982\0"))


def test_an_attempt_of_an_earlier_boot_is_lost_and_its_process_ids_are_not_touched(
    attempts: Attempts,
) -> None:
    spec = attempts.spec("/bin/true")
    bystander = subprocess.Popen(["sleep", "60"])
    process = identify(bystander.pid)
    assert process is not None
    status = {
        "state": "running", "boot_id": "another", "started_at": 0.0,
        "supervisor_pid": bystander.pid, "supervisor_ticks": process.start_ticks,
        "sandbox_pid": bystander.pid, "sandbox_ticks": process.start_ticks, "mark": "",
    }  # fmt: skip
    (spec.directory / "status.json").write_text(json.dumps(status))
    assert "restarted" in str(kill(spec.directory).failure)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_a_reused_process_id_is_not_signalled() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    process = identify(bystander.pid)
    assert process is not None
    assert not send_signal(process._replace(start=f"{process.start}0"), signal.SIGKILL)
    assert bystander.poll() is None
    assert send_signal(process, signal.SIGKILL)
    bystander.wait()
    assert identify(bystander.pid) is None
    assert not send_signal(process, signal.SIGKILL)


def test_output_is_bounded_and_keeps_its_end(attempts: Attempts) -> None:
    spec = attempts.spec("/bin/sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end")
    start_or_attach(spec)
    assert wait_exited(spec.directory).exit_code == 0
    logs = [spec.directory / "output.log", spec.directory / "output.log.1"]
    assert sum(log.stat().st_size for log in logs) <= 2 * LOG_BYTES
    assert logs[0].read_text().endswith("the end\n")


@needs_bwrap
def test_a_sandbox_that_cannot_be_created_reports_the_reason(attempts: Attempts) -> None:
    spec = attempts.spec("/bin/true")
    spec.read_only.append(["/no/such/folder", "/harness/x"])
    start_or_attach(spec)
    status = wait_exited(spec.directory)
    assert status.end_reason == EndReason.SANDBOX_LOST
    assert "before its program could start" in str(status.failure)
    assert "/no/such/folder" in (spec.directory / "output.log").read_text()


def test_a_missing_program_ends_with_an_exit_code(attempts: Attempts) -> None:
    spec = attempts.spec("/no/such/program")
    start_or_attach(spec)
    assert wait_exited(spec.directory).exit_code not in (0, None)


def test_a_supervisor_that_cannot_start_raises(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(SandboxFailed, match="supervisor"):
        start_or_attach(attempts.spec("/bin/true"))


def test_ids_become_directory_names() -> None:
    assert slug("run/demo/group/3/rollout/1/attempt/2") == "demo-group-3-rollout-1-attempt-2"


def _worker_that_starts(spec: HarnessSpec) -> subprocess.Popen[bytes]:
    """Start another process, in its own group, that starts the harness and then hangs."""
    code = (
        "import pickle, sys, time; from sandbox.harness_process import start_or_attach;"
        "start_or_attach(pickle.load(open(sys.argv[1], 'rb'))); time.sleep(600)"
    )

    given = spec.directory / "given.pickle"
    given.write_bytes(pickle.dumps(spec))
    root = Path(isolation.__file__).parents[1]
    return subprocess.Popen([sys.executable, "-c", code, given], cwd=root, start_new_session=True)


def _running(command_line: str) -> bool:
    """Return whether a living process has this command line."""
    for name in os.listdir("/proc"):
        if name.isdigit() and identify(int(name)) is not None:
            try:
                if Path(f"/proc/{name}/cmdline").read_text() == command_line:
                    return True
            except OSError:
                continue
    return False
