"""The first program inside a sandbox: opens the gateway's port, gives up its rights, becomes the harness.

Runs as ``python -I -S -E entry.py UID CONTROL_FD PORT PROCESSES FILE_BYTES ADDRESS_BYTES CWD PROGRAM...``
where -1 (0 for sizes and the port) means "leave it". It says over CONTROL_FD that the sandbox stands, and
hands out the listening socket, which lives in the sandbox's network namespace: so the forwarding is done
outside, where the harness cannot reach it and where a gateway that restarts is found again by its path.
It then waits for a byte: no harness runs before its process ids are on record.
"""

import os
import sys
from resource import RLIMIT_AS, RLIMIT_CORE, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_NPROC, setrlimit

OPEN_FILES = 4096


def main() -> None:
    uid, control, port, processes, file_bytes, address_bytes = (int(text) for text in sys.argv[1:7])
    cwd, program = sys.argv[7], sys.argv[8:]
    if control >= 0:
        _report(control, port)
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.chdir(cwd)
    # After the change of user: a limit on processes counts those of the real user.
    _limit(RLIMIT_CORE, 0)
    _limit(RLIMIT_NOFILE, OPEN_FILES)
    for kind, value in ((RLIMIT_NPROC, processes), (RLIMIT_FSIZE, file_bytes), (RLIMIT_AS, address_bytes)):
        if value > 0:
            _limit(kind, value)
    os.execvp(program[0], program)


def _limit(kind: int, value: int) -> None:
    setrlimit(kind, (value, value))


def _report(control: int, port: int) -> None:
    if port:
        _hand_out_listener(control, port)
    else:
        os.write(control, b"ready")
    go = os.read(control, 1)
    os.close(control)
    if not go:
        raise SystemExit("its supervisor is gone")


def _hand_out_listener(control: int, port: int) -> None:
    import socket

    with socket.socket(fileno=os.dup(control)) as channel, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        socket.send_fds(channel, [b"ready"], [listener.fileno()])


if __name__ == "__main__":
    main()
