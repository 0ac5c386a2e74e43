"""Means of isolation: the bubblewrap command line, one real user per sandbox, and the probe.

Run as root, each sandbox gets its own real user id (limits on processes do not bind root, not even under a
mapped id), then a user namespace in which no further one can be created. Run as a plain user, bubblewrap
creates the user namespace itself. Without bubblewrap the harness is a plain process.
"""

import functools
import os
import socket
import sys

BWRAP_USERNS = "bwrap+userns"
BWRAP = "bwrap"
PLAIN = "plain"

FIRST_UID = 60000
NUM_UIDS = 4096
PORT = 8377
"""Port of the gateway inside a sandbox's own network namespace."""
TMP_BYTES = 256 << 20

WORKSPACE = "/workspace"
HOME = "/home/agent"
ENTRY = "/gyre/entry.py"

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
ETC = (
    "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime",
)  # fmt: skip
NOT_ISOLATED = (
    "bubblewrap does not work here, so harnesses and evaluators run as plain processes: they can read "
    "every file of this user, reach every service on this machine and are limited process by process only"
)


def python() -> str:
    """Return the path of the interpreter itself, not of a virtual environment's link to it."""
    return os.path.realpath(sys.executable)


def python_prefix() -> str:
    return os.path.realpath(sys.base_prefix)


@functools.cache
def probe() -> str:
    """Return the strongest isolation that works here, found by running it once. Warns if none works."""
    import shutil
    import warnings

    for kind in (BWRAP_USERNS, BWRAP):
        if shutil.which("bwrap") and _works(kind):
            return kind
    warnings.warn(NOT_ISOLATED, RuntimeWarning, stacklevel=2)
    return PLAIN


def _works(kind: str) -> bool:
    import subprocess

    claimed = claim_uid() if os.geteuid() == 0 else None
    options = bwrap_options(uid=claimed[0] if claimed else -1, read_only=[], writable=[], cwd="/")
    entry = entry_argv(uid=claimed[0] if claimed else -1, cwd="/")
    command = ["bwrap", *options, "--", *entry, *inner_argv(kind, "/"), "true"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        if claimed:
            claimed[1].close()
    return done.returncode == 0


def claim_uid() -> tuple[int, socket.socket]:
    """Return a user id that no other sandbox of this machine has, claimed while the socket is open.

    The claim is an abstract Unix socket: the kernel frees it when its holder dies, however it dies.
    """
    # Processes start at different ids, so that simultaneous claims rarely collide.
    for offset in range(NUM_UIDS):
        uid = FIRST_UID + (os.getpid() + offset) % NUM_UIDS
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0gyre-sandbox-uid-{uid}")
        except OSError:
            claim.close()
            continue
        return uid, claim
    raise OSError(f"all {NUM_UIDS} user ids for sandboxes are taken")


def bwrap_options(*, uid: int, read_only: list[list[str]], writable: list[list[str]], cwd: str) -> list[str]:
    """Return bubblewrap's options up to ``--``. ``uid`` is the real id taken later, -1 for a plain user.

    ``read_only`` and ``writable`` are ``[path on this machine, path inside]``. Nothing else of this machine
    is visible except /usr, a few files of /etc and the interpreter.
    """
    options = ["--die-with-parent", "--new-session", "--hostname", "sandbox"]
    options += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    if uid >= 0:
        # entry.py needs the two to change to the real user, and loses them by that change.
        options += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        options += ["--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000"]
    options += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    options += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/tmp"]
    options += ["--perms", "1777", "--size", str(TMP_BYTES), "--tmpfs", "/dev/shm"]
    options += ["--perms", "0755", "--dir", "/var", "--symlink", "/tmp", "/var/tmp"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            options += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            options += ["--ro-bind", folder, folder]
    made: set[str] = {"/", "/usr", "/tmp", "/var"}
    binds = [["--ro-bind-try", path, path] for path in ETC]
    binds += [["--ro-bind", os.path.join(os.path.dirname(__file__), "entry.py"), ENTRY]]
    if not python_prefix().startswith("/usr/") and python_prefix() != "/usr":
        binds += [["--ro-bind", python_prefix(), python_prefix()]]
    binds += [["--ro-bind", *pair] for pair in read_only] + [["--bind", *pair] for pair in writable]
    for bind in binds:
        options += _parents(bind[2], made) + bind
    return [*options, "--chdir", cwd]


def _parents(path: str, made: set[str]) -> list[str]:
    """Return options that create readable parents; bubblewrap would make them private to its user."""
    options: list[str] = []
    parts = path.strip("/").split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        parent = "/" + "/".join(parts[:depth])
        if parent not in made and not parent.startswith("/usr/"):
            made.add(parent)
            options += ["--perms", "0755", "--dir", parent]
    return options


def entry_argv(
    *, uid: int, cwd: str, control: int = -1, port: int = 0, processes: int = 0, file_bytes: int = 0,
    address_bytes: int = 0, entry: str = ENTRY,
) -> list[str]:  # fmt: skip
    """Return the command line of ``entry.py``, which the program's own follows."""
    numbers = (uid, control, port, processes, file_bytes, address_bytes)
    return [python(), "-I", "-S", "-E", entry, *map(str, numbers), cwd]


def inner_argv(kind: str, cwd: str) -> list[str]:
    """Return the prefix that gives a real user id a user namespace, the last that can be created in it."""
    if kind != BWRAP_USERNS or os.geteuid() != 0:
        return []
    return ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--chdir", cwd, "--"]
