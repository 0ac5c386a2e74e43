"""The benchmark's profiler attributes CPU time to stages of the gateway, and counts no waiting."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import LiteralString

import httpx
import pytest
import uvloop
from sqlalchemy import create_engine

from benchmarks import gateway_process
from benchmarks.gateway_process import Profiler, cpu_s_by_stage, stage_of
from db import recording
from db.direct import Direct, Statement
from tests.gateway.conftest import World, wait_until
from tests.gateway.test_calls import CHAT, chat, said

BUSY_S = 0.5
TOLERANCE = 0.2
"""Some 100 ticks fall into `BUSY_S`, so a stage is missed or overcounted by a few of them at most."""


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def outer() -> None:
    busy(BUSY_S)
    inner()


def inner() -> None:
    busy(BUSY_S)


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> dict[CodeType, str]:
    found = {outer.__code__: "outer", inner.__code__: "inner"}
    monkeypatch.setattr(gateway_process, "STAGES", found)
    return found


@contextlib.contextmanager
def profiling() -> Iterator[Profiler]:
    profiler = Profiler()
    profiler.start()
    try:
        yield profiler
    finally:
        profiler.stop()


def run_here(work: Callable[[], None]) -> None:
    work()


def run_in_loop(work: Callable[[], None]) -> None:
    async def main() -> None:
        await asyncio.sleep(0.05)
        work()

    uvloop.run(main())


def run_in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)  # A handler runs only while the main thread runs Python.


@pytest.mark.usefixtures("stages")
@pytest.mark.parametrize("run", [run_here, run_in_loop, run_in_thread])
def test_time_counts_for_the_innermost_stage(run: Callable[[Callable[[], None]], None]) -> None:
    with profiling() as profiler:
        run(outer)
    assert profiler.spent_s["outer"] == pytest.approx(BUSY_S, rel=TOLERANCE)
    assert profiler.spent_s["inner"] == pytest.approx(BUSY_S, rel=TOLERANCE)


def test_waiting_is_free(stages: dict[CodeType, str]) -> None:
    def wait() -> None:
        time.sleep(BUSY_S)
        busy(BUSY_S)

    stages[wait.__code__] = "wait"
    with profiling() as profiler:
        wait()
        busy(BUSY_S)
    assert profiler.spent_s["wait"] == pytest.approx(BUSY_S, rel=TOLERANCE)


def test_a_profiled_gateway_serves_and_reports_every_stage(world: World) -> None:
    boot_file = world.folder / "gateway.json"
    boot_file.write_text(world.boot().model_dump_json())
    command = [sys.executable, "-m", "benchmarks.gateway_process", "--boot", str(boot_file)]
    process = subprocess.Popen(command, cwd=Path.cwd())
    try:
        wait_until(lambda: (world.folder / "g.sock").exists(), process)
        with httpx.Client(base_url=f"{world.url}/t/{world.token}", timeout=60) as client:
            assert said(client.post(CHAT, json=chat("hi"))) == "done"
        spent_s = cpu_s_by_stage(boot_file)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert set(spent_s) >= {"parse", "match and render", "encode", "begin", "commit", "other rows"}
    assert all(seconds >= 0 for seconds in spent_s.values())


@pytest.mark.parametrize(("sql", "stage"), [(recording.BEGIN, "begin"), (recording.COMMIT, "commit")])
def test_a_statement_counts_for_what_it_writes(sql: LiteralString, stage: str) -> None:
    """Both statements run in one function: only its argument tells them apart."""
    running = Direct(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")).run(Statement(sql, {}))
    assert stage_of(running.cr_frame) == stage
    running.close()
