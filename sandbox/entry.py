"""The first program inside a sandbox: opens the gateway's port, drops its rights, becomes the harness.

Runs as ``python -I -S -E entry.py UID CONTROL_FD PORT PROCESSES FILE_BYTES ADDRESS_BYTES CWD PROGRAM...``
where -1 (0 for sizes and the port) leaves a setting unchanged. Over CONTROL_FD it reports that the sandbox is
ready and passes on the listening socket, which belongs to the sandbox's network namespace. Forwarding is thus
done outside, out of the harness's reach, and a restarted gateway is found again by its path. It then waits
for a byte, so that no harness runs before its process ids are recorded.
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
        os.setgroups([])  # first: it is not permitted after the change of user
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.chdir(cwd)
    # After the change of user: a limit on processes counts those of the real user.
    limits = [(RLIMIT_CORE, 0), (RLIMIT_NOFILE, OPEN_FILES)]
    optional = ((RLIMIT_NPROC, processes), (RLIMIT_FSIZE, file_bytes), (RLIMIT_AS, address_bytes))
    limits += [(kind, value) for kind, value in optional if value > 0]
    for kind, value in limits:
        setrlimit(kind, (value, value))
    os.execvp(program[0], program)


def _report(control: int, port: int) -> None:
    """Report readiness, with the listening socket if there is a port; return when the program may start."""
    if port:
        import socket

        with socket.socket(fileno=os.dup(control)) as channel, socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
            socket.send_fds(channel, [b"ready"], [listener.fileno()])
    else:
        os.write(control, b"ready")
    go = os.read(control, 1)
    os.close(control)
    if not go:
        raise SystemExit("its supervisor is gone")


if __name__ == "__main__":
    main()
