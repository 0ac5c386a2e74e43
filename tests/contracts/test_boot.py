"""Every process reads its boot file in the same way: a valid document, or one sentence and exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.contracts.boot import EngineBoot, read_boot

GOOD = {"model_path": "m", "port": 1, "epoch": 1}
MODULES = (
    "gateway",
    "app.worker",
    "gpu_workers.supervisor",
    "gpu_workers.engine",
    "gpu_workers.trainer",
)


def test_a_boot_file_is_found_among_other_arguments(tmp_path: Path) -> None:
    file = tmp_path / "boot.json"
    file.write_text(json.dumps(GOOD))
    assert read_boot(EngineBoot, ["p", "--parent", "7", "--boot", str(file)]) == EngineBoot(**GOOD)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"port": "x"}, "port: Input should be a valid integer, unable to parse string as an integer"),
        ({"what": 1}, "what: Extra inputs are not permitted"),
        ({"max_batch": 0}, "max_batch: Input should be greater than or equal to 1"),
    ],
)
def test_an_invalid_boot_file_is_refused_with_the_key(
    tmp_path: Path, change: dict[str, object], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "boot.json"
    file.write_text(json.dumps(GOOD | change))
    with pytest.raises(SystemExit) as ended:
        read_boot(EngineBoot, ["p", "--boot", str(file)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"boot file {file}: {sentence}\n"


@pytest.mark.parametrize("module", MODULES)
def test_a_process_without_its_boot_file_exits_with_one_sentence(tmp_path: Path, module: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", module, "--boot", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (2, f"boot file {tmp_path / 'none'}: No such file or directory")
    assert "Traceback" not in done.stderr


def test_a_missing_boot_argument_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_boot(EngineBoot, ["p", "--boot"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "usage: p --boot FILE\n"
