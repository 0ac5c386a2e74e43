"""One kept process: adoption, backoff, circuit breaker, stop."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from app.stack.kept_process import KeptProcess, KeptState
from app.stack.ledger import Ledger
from app.stack.restart import RestartPolicy
from app.stack.spec import ProcessSpec
from gyre.contracts.errors import BadInput
from gyre.host.processes import identify, is_alive

QUICK = RestartPolicy(first_s=0.01, longest_s=0.02, window_s=60, burst=3, pause_s=600)
SLEEPS = "import time; time.sleep(600)"


def spec(folder: Path, code: str, **changes: object) -> ProcessSpec:
    values = {
        "name": "kept",
        "command": (sys.executable, "-S", "-c", code),
        "cwd": folder,
        "log": folder / "kept.log",
        "stop_grace_s": 5.0,
    }
    return ProcessSpec(**(values | changes))  # type: ignore[arg-type]


def make_kept(folder: Path, code: str, **changes: object) -> KeptProcess:
    return KeptProcess(spec(folder, code, **changes), Ledger(folder / "processes.json"), QUICK)


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 60))  # type: ignore[arg-type]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def test_a_process_that_dies_is_restarted(tmp_path: Path) -> None:
    async def body() -> None:
        kept = make_kept(tmp_path, SLEEPS)
        await kept.start()
        first = kept.process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: kept.num_restarts == 1 and kept.state == KeptState.UP)
        assert kept.process != first
        await kept.stop()
        assert kept.process is None

    run(body)


def test_the_breaker_opens_for_a_process_that_always_dies(tmp_path: Path) -> None:
    async def body() -> None:
        kept = make_kept(tmp_path, "raise SystemExit(7)")
        kept.start_later()
        await until(lambda: kept.state == KeptState.PAUSED)
        assert kept.describe()["detail"] == "died with exit status 7"
        starts = kept.num_restarts
        assert starts == QUICK.burst + 1
        await asyncio.sleep(0.3)
        assert kept.num_restarts == starts, "it was started while the breaker was open"
        await kept.stop()

    run(body)


def test_a_process_that_ignores_the_stop_signal_is_killed(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w'); {SLEEPS}"

    async def body() -> None:
        kept = make_kept(tmp_path, code, stop_grace_s=0.2, healthy=(tmp_path / "ready").exists)
        await kept.start()
        process = kept.process
        assert process is not None
        await kept.stop()
        assert not is_alive(process)

    run(body)


def test_a_process_that_ends_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    async def body() -> None:
        kept = make_kept(tmp_path, "raise SystemExit(3)", healthy=lambda: False)
        with pytest.raises(BadInput, match=r"ended while starting with exit status 3: see .*kept\.log"):
            await kept.start()

    run(body)


def test_an_equal_process_is_adopted_and_another_is_replaced(tmp_path: Path) -> None:
    async def body() -> None:
        first = make_kept(tmp_path, SLEEPS)
        await first.start()
        process = first.process
        assert process is not None

        adopter = make_kept(tmp_path, SLEEPS)
        await adopter.start()
        assert adopter.process == process

        changed = make_kept(tmp_path, SLEEPS, environment={"A": "1"})
        stopping = asyncio.create_task(changed.start())
        await stopping
        assert changed.process != process
        await until(lambda: identify(process.pid) is None)
        for kept in (first, adopter, changed):
            await kept.stop()

    run(body)


def test_a_process_identity_distinguishes_a_reused_pid() -> None:
    mine = identify(os.getpid())
    assert mine is not None
    assert is_alive(mine)
    assert not is_alive(mine._replace(start="another boot/1"))
    assert identify(2**22 - 1) is None
