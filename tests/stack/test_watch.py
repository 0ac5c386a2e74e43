"""The keeper's watch survives trouble with one run and reaps only orphans."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from app.stack.files import StateDir
from app.stack.keeper import Keeper
from app.stack.run_record import record_path
from app.stack.spec import ProcessSpec

REAPS = """
import os, subprocess, time
from pathlib import Path
from app.stack.orphans import become_subreaper, reap_orphans

def is_zombie(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

become_subreaper()
helper = subprocess.Popen(["/bin/sh", "-c", "exit 3"])  # as subprocess.run in a thread does
# The shell must end first: it would reap a child that ends before it.
shell = ["/bin/sh", "-c", "sleep 0.2 & echo $!"]
kept = subprocess.Popen(shell, start_new_session=True, stdout=subprocess.PIPE)
orphan = int(kept.stdout.readline())
for pid in (helper.pid, kept.pid, orphan):
    while not is_zombie(pid):
        time.sleep(0.01)
reap_orphans({kept.pid})
print(not Path(f"/proc/{orphan}").exists() or os.getpgid(orphan), helper.wait(), kept.wait())
"""


def test_only_inherited_zombies_are_reaped() -> None:
    done = subprocess.run([sys.executable, "-c", REAPS], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True 3 0\n", done.stderr


def test_an_error_with_one_run_does_not_end_the_watch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = StateDir(tmp_path)
    state.make()
    state.run("spoilt").mkdir()
    record_path(state, "spoilt").write_text("{")

    async def body() -> str:
        keeper = Keeper(state)
        keeper.keep(ProcessSpec(name="spoilt/gateway", command=("true",), cwd=tmp_path, log=tmp_path / "log"))
        watch, log = asyncio.create_task(keeper.watch(0.01)), ""
        while log.count("cannot be read") < 3:
            assert not watch.done()
            await asyncio.sleep(0.01)
            log += capsys.readouterr().err
        watch.cancel()
        return log

    assert "processes.json" in asyncio.run(asyncio.wait_for(body(), 60))
