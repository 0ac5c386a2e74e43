"""Score a restored workspace in a fresh sandbox without any network.

The task's ``tests/test.sh`` writes ``/logs/verifier/reward.txt``. Unless that is a number in [0, 1] when the
last process has ended, the evaluator has failed; a failure is never a zero.
"""

import math
import os
import stat
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

from gyre.contracts.errors import EvaluatorFailed, SandboxFailed
from sandbox import isolation, spawn, watch
from sandbox.harness_process import HarnessSpec, Limits
from sandbox.snapshot import restore
from sandbox.workspace import remove

TAIL_BYTES = 4096
REWARD_BYTES = 256
TESTS, VERIFIER = "/tests", "/logs/verifier"


@dataclass(frozen=True)
class EvaluationOutcome:
    """A valid reward in [0, 1] with the end of the evaluator's output."""

    reward: float
    output_tail: str
    seconds: float


class EvaluationFailure(EvaluatorFailed):
    """No valid reward, with the end of the evaluator's output."""

    def __init__(self, sentence: str, output_tail: str) -> None:
        super().__init__(sentence)
        self.output_tail = output_tail


class Tail:
    """The last TAIL_BYTES of a stream."""

    def __init__(self) -> None:
        self._data = b""

    def write(self, data: bytes) -> None:
        self._data = (self._data + data)[-TAIL_BYTES:]

    def text(self) -> str:
        """Return the bytes as text without NUL characters, which Postgres cannot store."""
        return self._data.decode(errors="replace").replace("\0", "�")


def evaluate(
    tests: Path, archive: Path, scratch: Path, *, limit_s: float, limits: Limits | None = None
) -> EvaluationOutcome:
    """Restore the archive below ``scratch``, run the tests over it, read the reward, clean up.

    Raises EvaluationFailure (an EvaluatorFailed) for a reward that is missing, not a number or out of
    range, for a time-out and for a crash; SnapshotFailed if the archive cannot be restored.
    """
    began = time.monotonic()
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="evaluation-", dir=scratch))
    try:
        restore(archive, folder / "workspace")
        copytree(tests, folder / "tests", symlinks=True)
        for name in ("home", "verifier"):
            (folder / name).mkdir()
        tail = Tail()
        spec = evaluation_spec(folder, limit_s, limits or Limits())
        try:
            exit_code = _run(spec, folder, tail, began + limit_s)
            reward = read_reward(folder / "verifier" / "reward.txt", exit_code)
        except EvaluatorFailed as error:
            raise EvaluationFailure(str(error), tail.text()) from error
        except SandboxFailed as error:
            raise EvaluationFailure(f"its sandbox failed: {error}", tail.text()) from error
        return EvaluationOutcome(reward, tail.text(), time.monotonic() - began)
    finally:
        remove(folder)


def evaluation_spec(folder: Path, limit_s: float, limits: Limits) -> HarnessSpec:
    """Return the spec that runs ``bash /tests/test.sh`` in the workspace, without a gateway."""
    plain = isolation.probe() == isolation.PLAIN
    inside = {
        "workspace": isolation.WORKSPACE, "home": isolation.HOME, "tests": TESTS, "verifier": VERIFIER,
    }  # fmt: skip
    paths = {name: str(folder / name) if plain else path for name, path in inside.items()}
    return HarnessSpec(
        directory=folder,
        argv=["bash", f"{paths['tests']}/test.sh"],
        env={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": paths["home"],
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
            "GYRE_TESTS": paths["tests"],
            "GYRE_VERIFIER": paths["verifier"],
        },
        cwd=paths["workspace"],
        time_limit_s=limit_s,
        limits=limits,
        read_only=[[str(folder / "tests"), TESTS]],
        writable=[[str(folder / name), inside[name]] for name in ("workspace", "home", "verifier")],
    )


def _run(spec: HarnessSpec, folder: Path, tail: Tail, deadline: float) -> int:
    """Run to the end of the last process and return the exit code. Raises EvaluatorFailed at a limit."""
    document = spec.document()
    if spec.isolation != isolation.PLAIN:
        # The sandbox's user must read the tests, even if the task's folder gives others no permission.
        document["owned"] = [*document["owned"], str(folder / "tests")]
    with ExitStack() as stack:
        read, write = os.pipe()
        stack.callback(os.close, read)
        try:
            sandbox = spawn.start(document, str(folder), write)
        except SandboxFailed:
            watch.drain(read, tail.write)
            raise
        finally:
            os.close(write)
        sandbox.release()
        try:
            reason, failure = watch.follow(sandbox, document, read, tail.write, deadline=deadline)
        finally:
            sandbox.end()
            watch.drain(read, tail.write)
            sandbox.close()
    if reason == watch.TIME_LIMIT:
        raise EvaluatorFailed(f"the evaluator was stopped after {spec.time_limit_s:g} s without a verdict")
    if failure is not None:
        raise EvaluatorFailed(f"the evaluator was stopped: {failure}")
    assert sandbox.exit_code is not None
    return sandbox.exit_code


def read_reward(path: Path, exit_code: int = 0) -> float:
    """Return the number in a reward file. Raises EvaluatorFailed unless it is one in [0, 1].

    Untrusted code wrote the file, so links are not followed and pipes are not waited for.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise EvaluatorFailed(
            f"the evaluator left no reward ({error.strerror}); it exited with {exit_code}"
        ) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise EvaluatorFailed("the evaluator's reward.txt is not a file")
        text = os.read(fd, REWARD_BYTES).decode(errors="replace").strip()
    finally:
        os.close(fd)
    try:
        reward = float(text)
    except ValueError:
        raise EvaluatorFailed(f"the evaluator's reward is not a number: {text[:60]!r}") from None
    if not (math.isfinite(reward) and 0 <= reward <= 1):
        raise EvaluatorFailed(f"the evaluator's reward {text[:60]} is not in [0, 1]")
    # Other exit codes are ignored: a script may end with that of its last test.
    if exit_code > watch.KILLED:
        signal = exit_code - watch.KILLED
        raise EvaluatorFailed(f"the evaluator was ended by signal {signal} after its reward")
    return reward
