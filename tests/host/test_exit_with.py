"""``exit_with``: a process is killed with its parent, but not with the thread that started it."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gyre.host.processes import ProcessIdentity, identify, is_alive, send_signal

CHILD = """
import os, sys, time
from gyre.host.processes import exit_with
exit_with(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = f"""
import os, subprocess, sys, threading, time

def start():
    command = [sys.executable, "-c", {CHILD!r}, str(os.getpid())]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    print(child.stdout.readline(), end="", flush=True)  # The child watches its parent by now.

thread = threading.Thread(target=start)
thread.start()
thread.join()
print("the thread has ended", flush=True)
time.sleep(600)
"""
WATCH_S = 0.5
"""A death signal of the kernel would arrive in microseconds."""


@contextmanager
def family() -> Iterator[tuple[subprocess.Popen[str], ProcessIdentity]]:
    """Start a parent whose child was started by a thread that has ended."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = identify(int(parent.stdout.readline()))
    assert child
    try:
        assert parent.stdout.readline() == "the thread has ended\n"
        yield parent, child
    finally:
        parent.kill()
        parent.communicate()
        send_signal(child, signal.SIGKILL)


def wait_until_gone(process: ProcessIdentity) -> None:
    until = time.monotonic() + 30
    while is_alive(process):
        assert time.monotonic() < until, "the child outlived its parent"
        time.sleep(0.01)


def test_a_process_dies_when_its_parent_is_killed() -> None:
    with family() as (parent, child):
        parent.kill()
        wait_until_gone(child)


def test_a_process_survives_the_thread_that_started_it() -> None:
    with family() as (_, child):
        time.sleep(WATCH_S)
        assert is_alive(child)


def test_a_process_dies_at_once_when_its_parent_is_already_gone() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = subprocess.run([sys.executable, "-c", CHILD, str(gone.pid)], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
