"""The engine as a process: it exits with its parent, keeps what was sampled, and refuses a bad boot file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import Qwen3ForCausalLM

from gpu_workers.engine.build import read_model
from gyre.contracts.boot import EngineBoot
from gyre.contracts.errors import BadInput
from tests.engine.conformance import EngineUnderTest
from tests.engine.conftest import free_port, start_engine, wait_healthy

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "gpu_workers.engine", "--boot", sys.argv[1]])
print(child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_exits_when_its_parent_is_killed(reference: tuple[Path, Qwen3ForCausalLM], tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "boot.json"
    file.write_text(EngineBoot(model_path=str(reference[0]), port=port, epoch=1).model_dump_json())
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(file)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    try:
        pid = int(parent.stdout.readline())
        wait_healthy(port, parent)
        assert alive(pid)
    finally:
        parent.kill()
        parent.communicate()
    until = time.monotonic() + 30
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    if alive(pid):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the engine outlived its parent")


def test_sigterm_answers_with_the_tokens_sampled_so_far(
    reference: tuple[Path, Qwen3ForCausalLM], tmp_path: Path
) -> None:
    port = free_port()
    boot = EngineBoot(model_path=str(reference[0]), port=port, epoch=1, context_tokens=32768)
    process = start_engine(tmp_path, boot)
    with (
        EngineUnderTest(f"http://127.0.0.1:{port}") as engine,
        engine.stream(engine.prompt(), seed=1, max_new_tokens=30000) as events,
    ):
        first = next(events)
        process.terminate()
        last = [first, *events][-1]
    assert process.wait(30) == -signal.SIGTERM
    assert last.finish == "abort"
    assert len(last.ids) == len(last.logprobs) > 0


@pytest.mark.parametrize(("dtype", "device"), [("int4", "cpu"), ("float32", "tpu")])
def test_unknown_dtype_and_device(reference: tuple[Path, Qwen3ForCausalLM], dtype: str, device: str) -> None:
    with pytest.raises(BadInput, match=r"int4|tpu"):
        read_model(reference[0], context_tokens=64, dtype=dtype, device=device)


def test_an_unusable_boot_file_is_reported_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "boot.json"
    file.write_text(EngineBoot(model_path="/nowhere", port=free_port(), epoch=1).model_dump_json())
    command = [sys.executable, "-m", "gpu_workers.engine", "--boot", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "config.json cannot be read" in done.stderr
    assert "Traceback" not in done.stderr
