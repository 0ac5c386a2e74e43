"""The gateway process under a sampling profiler: ``python -m benchmarks.gateway_process --boot FILE``.

Runs `gateway.__main__` unmodified. A timer interrupts it after every `TICK_S` of CPU time, and what each
thread spent since the last tick counts for the innermost stage on its stack. `cpu_s_by_stage` reads the sums
over a Unix socket next to the boot file.
"""

import json
import signal
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from db import calls, recording
from db.direct import Direct, Statement
from gateway import __main__ as gateway_main
from gateway.app import parse_request
from gateway.engines import read_response, request_body
from gateway.prompts import assemble_prompt, match_request
from gateway.rendering import Renderer
from gateway.store import Store
from gyre.trajectory.answers import parse_answer

TICK_S = 0.005
"""At 60 calls per second for 40 s, these are a few thousand ticks."""
STAGES: dict[CodeType, str] = {
    function.__code__: stage
    for stage, functions in {
        "parse": [parse_request],
        "match and render": [match_request, assemble_prompt],
        "encode": [Renderer.encode],
        "engine request": [request_body],
        "engine answer": [read_response],
        "read the answer": [Renderer.decode_answer, parse_answer],
        "begin": [recording.begin],
        "commit": [recording.commit],
        "delivered": [calls.mark_delivered],
        "other rows": [Store.transact],
    }.items()
    for function in functions
}
STATEMENTS = {recording.BEGIN: "begin", recording.COMMIT: "commit"}
"""`Direct.run` is the same function for both, so its argument tells the stage."""


def stage_of(frame: FrameType | None) -> str | None:
    """Return the innermost stage on a stack."""
    while frame is not None:
        if frame.f_code is Direct.run.__code__:
            sql = next(value.sql for value in frame.f_locals.values() if isinstance(value, Statement))
            return STATEMENTS.get(sql)
        if stage := STAGES.get(frame.f_code):
            return stage
        frame = frame.f_back
    return None


class Profiler:
    """Samples all threads of this process. Start and stop it in the main thread."""

    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter(dict.fromkeys(STAGES.values(), 0.0))
        self._seen_ns: dict[int, int] = {}

    def start(self) -> None:
        """Interrupt the main thread after every `TICK_S` of the process's CPU time."""
        signal.signal(signal.SIGPROF, lambda *_: self.tick())
        signal.setitimer(signal.ITIMER_PROF, TICK_S, TICK_S)

    def stop(self) -> None:
        """End the ticks. An interpreter that shuts down with the timer on is killed by it."""
        signal.setitimer(signal.ITIMER_PROF, 0)

    def tick(self) -> None:
        """Add what each thread spent since the last tick to its current stage."""
        frames = sys._current_frames()
        for thread in threading.enumerate():
            if thread.native_id is None or thread.ident is None:
                continue  # It is about to start.
            try:
                now = _thread_time_ns(thread.native_id)
            except OSError:
                continue  # It has just ended.
            spent = now - self._seen_ns.get(thread.native_id, now)
            self._seen_ns[thread.native_id] = now
            if stage := stage_of(frames.get(thread.ident)):
                self.spent_s[stage] += spent / 1e9

    def serve(self, path: Path) -> None:
        """Send the sums to each client of a Unix socket, forever, in a daemon thread."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            while True:
                client, _ = listening.accept()
                with client:
                    client.sendall(json.dumps(self.spent_s).encode())

        threading.Thread(target=answer, daemon=True).start()


def _thread_time_ns(native_id: int) -> int:
    """Return the CPU time of any thread of this process. Raises OSError if it has ended."""
    # Linux's clock id of a thread. pthread_getcpuclockid gives the same, but crashes for an ended thread.
    return time.clock_gettime_ns((~native_id << 3) | 6)


def socket_of(boot_file: Path) -> Path:
    """Return where the process with this boot file serves its sums."""
    return boot_file.with_suffix(".cpu")


def cpu_s_by_stage(boot_file: Path) -> dict[str, float]:
    """Return the CPU seconds per stage that the process with this boot file has spent so far."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(socket_of(boot_file)))
        with connection.makefile("rb") as received:
            return json.loads(received.read())


if __name__ == "__main__":
    profiler = Profiler()
    profiler.serve(socket_of(Path(sys.argv[sys.argv.index("--boot") + 1])))
    profiler.start()
    try:
        gateway_main.main()
    finally:
        profiler.stop()
