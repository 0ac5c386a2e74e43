"""A process is known by more than its pid, and signals reach no other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gyre.host.processes import ProcessIdentity, identify, is_alive, send_signal


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "100"])
    yield process
    process.kill()
    process.wait()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    found = identify(process.pid)
    assert found is not None
    return found


def await_zombie(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has ended, but do not reap it."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_a_live_process_keeps_its_identity(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    assert identity == identity_of(sleeper)
    assert is_alive(identity)


def test_a_zombie_and_a_reaped_process_have_no_identity(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    sleeper.kill()
    await_zombie(sleeper)
    assert identify(sleeper.pid) is None
    assert not is_alive(identity)
    sleeper.wait()
    assert identify(sleeper.pid) is None


def test_a_reused_pid_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    """A record of an earlier start, or of another boot, does not match the pid's present owner."""
    identity = identity_of(sleeper)
    boot, _, ticks = identity.start.partition("/")
    for earlier in (f"{boot}/{int(ticks) - 1}", f"another-boot/{ticks}"):
        recorded = identity._replace(start=earlier)
        assert not is_alive(recorded)
        assert not send_signal(recorded, signal.SIGKILL)
    assert sleeper.poll() is None


def test_two_processes_of_one_program_differ(sleeper: subprocess.Popen[bytes]) -> None:
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))
    with subprocess.Popen(["sleep", "100"]) as other:
        assert identity_of(other).start != identity_of(sleeper).start
        other.kill()


def test_a_name_may_hold_anything() -> None:
    """Parentheses, spaces and bytes that are not UTF-8 do not hide a process."""
    rename = (
        "import sys, time\n"
        "open('/proc/self/comm', 'wb').write(b') Z 1 (\\xff')\n"
        "print('renamed', flush=True)\n"
        "time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", rename], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"renamed\n"
        assert is_alive(identity_of(process))
        process.kill()


def test_a_signal_reaches_its_process(sleeper: subprocess.Popen[bytes]) -> None:
    assert send_signal(identity_of(sleeper), signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM


def test_a_signal_to_a_process_that_is_gone_is_not_sent(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    sleeper.kill()
    await_zombie(sleeper)
    assert not send_signal(identity, signal.SIGTERM)
    sleeper.wait()
    assert not send_signal(identity, signal.SIGTERM)
