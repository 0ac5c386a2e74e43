"""Start a sandbox and guarantee its teardown. Standard library only; used by supervisor and evaluator."""

import contextlib
import os
import select
import signal
import socket
from typing import Any

from gyre.contracts.errors import SandboxFailed
from sandbox import isolation

START_S = 20.0
GONE_S = 10.0
MARK = "GYRE_SANDBOX"
"""Environment variable that marks the descendants of a plain process, so that they can be found."""


class Sandbox:
    """A started sandbox: ``pid`` is its monitor outside, ``init`` the first process of its namespace.

    ``gateway`` is the listening socket of 127.0.0.1:PORT inside, or None. The program starts at
    ``release``; until then the caller can record the processes that must be ended.
    """

    def __init__(
        self, kind: str, pid: int, init: int, mark: str, claim: socket.socket | None, channel: socket.socket
    ) -> None:
        self.kind, self.pid, self.init, self.mark, self._channel = kind, pid, init, mark, channel
        self.gateway: socket.socket | None = None
        self.exit_code: int | None = None
        self.pidfd = os.pidfd_open(pid)
        self.initfd: int | None = None
        # A very short program may be gone already; then there is nothing to watch either.
        with contextlib.suppress(ProcessLookupError):
            self.initfd = os.pidfd_open(init)
        self._claim = claim
        self._reaped = False

    def release(self) -> None:
        """Let the program start. If the sandbox has already ended, ``reap`` returns True."""
        with contextlib.suppress(ConnectionError):
            self._channel.send(b"g")

    def reap(self) -> bool:
        """Return whether the program has ended, and collect its exit code: 128 + n for signal n."""
        if not self._reaped:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code, self._reaped = (code if code >= 0 else 128 - code), True
        return self._reaped

    def end(self) -> None:
        """Kill every process of the sandbox and return when none is left.

        Raises SandboxFailed if one is still alive after ten seconds. The kernel lets the first process of a
        PID namespace end only after all the others, so its end proves theirs.
        """
        if self.kind == isolation.PLAIN:
            end_plain(self.pid, self.mark)
        for pidfd in (self.initfd, self.pidfd):
            if pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        if not all(_ended(pidfd, GONE_S) for pidfd in (self.initfd, self.pidfd) if pidfd is not None):
            raise SandboxFailed(
                f"processes of sandbox {self.init} are still there {GONE_S:.0f} s after SIGKILL"
            )
        self.reap()

    def close(self) -> None:
        """Release descriptors and the user id. Call it only after ``end``."""
        for pidfd in (self.initfd, self.pidfd):
            if pidfd is not None:
                os.close(pidfd)
        for held in (self.gateway, self._claim, self._channel):
            if held is not None:
                held.close()
        self.initfd = self.gateway = self._claim = None


def start(spec: dict[str, Any], directory: str, output: int) -> Sandbox:
    """Start the program of a spec (see ``HarnessSpec``) with ``output`` as its stdout and stderr.

    Raises SandboxFailed when isolation cannot be set up; nothing is left running then.
    """
    uid, claim = -1, None
    if spec["isolation"] != isolation.PLAIN and os.geteuid() == 0:
        uid, claim = isolation.claim_uid()
    ours, theirs = socket.socketpair()
    try:
        for folder in spec["owned"] if uid >= 0 else ():
            give(folder, uid)
        start_kind = _start_plain if spec["isolation"] == isolation.PLAIN else _start_bwrap
        pid, init, mark = start_kind(spec, directory, output, uid, theirs.fileno())
        theirs.close()  # so that the end of entry.py closes the channel
        sandbox = Sandbox(spec["isolation"], pid, init, mark, claim, ours)
    except BaseException:
        for held in (claim, ours, theirs):
            if held is not None:
                held.close()
        raise
    _await_entry(ours, sandbox)
    return sandbox


def _start_bwrap(
    spec: dict[str, Any], directory: str, output: int, uid: int, control: int
) -> tuple[int, int, str]:
    read_only = spec["read_only"] + _write_etc(os.path.join(directory, "etc"), uid if uid >= 0 else 1000)
    options = isolation.bwrap_options(uid=uid, read_only=read_only, writable=spec["writable"], cwd="/")
    port = isolation.PORT if spec["gateway_socket"] else 0
    with contextlib.ExitStack() as stack:
        info_read, info_write = os.pipe()
        stack.callback(os.close, info_read)
        # In a memory file, because a command line is readable inside and would show this machine's paths.
        options_fd = os.memfd_create("bwrap-options")
        stack.callback(os.close, options_fd)
        os.write(options_fd, b"\0".join(map(os.fsencode, options)))
        os.lseek(options_fd, 0, os.SEEK_SET)
        argv = ["bwrap", "--args", str(options_fd), "--info-fd", str(info_write), "--"]
        argv += isolation.entry_argv(uid=uid, cwd=spec["cwd"], control=control, port=port, **spec["limits"])
        argv += isolation.inner_argv(spec["isolation"], spec["cwd"]) + spec["argv"]
        try:
            pid = _spawn(argv, spec["env"], output, [options_fd, info_write, control])
        finally:
            os.close(info_write)
        init = _read_init(info_read)
        if init is None:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            raise SandboxFailed(f"bubblewrap ended with {code} before the sandbox was made")
        return pid, init, ""


def _start_plain(
    spec: dict[str, Any], directory: str, output: int, uid: int, control: int
) -> tuple[int, int, str]:
    entry = os.path.join(os.path.dirname(__file__), "entry.py")
    # The limit counts all processes of a user, and a plain process shares its user with others.
    limits = spec["limits"] | {"processes": 0}
    argv = isolation.entry_argv(uid=uid, cwd=spec["cwd"], control=control, entry=entry, **limits)
    mark = f"{os.getpid()}-{os.path.basename(directory)}"
    pid = _spawn(argv + spec["argv"], spec["env"] | {MARK: mark}, output, [control], own_session=True)
    return pid, pid, mark


def _spawn(
    argv: list[str], env: dict[str, str], output: int, inherited: list[int], *, own_session: bool = False
) -> int:
    # posix_spawn, not fork: the evaluator calls this from a large process with many threads. A dup2 of a
    # descriptor onto itself makes only the child inherit it, not every process started at that moment.
    actions: list[Any] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in inherited]
    try:
        return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsid=own_session)
    except OSError as error:
        raise SandboxFailed(f"{argv[0]} cannot be started: {error.strerror}") from error


def give(folder: str, uid: int) -> None:
    """Give a tree to a sandbox's user. Links themselves change owner and are never followed."""
    os.chown(folder, uid, uid, follow_symlinks=False)
    for path, folders, files in os.walk(folder):
        for name in folders + files:
            os.chown(os.path.join(path, name), uid, uid, follow_symlinks=False)


def _write_etc(folder: str, uid: int) -> list[list[str]]:
    """Write the files of /etc that name the sandbox's user and hosts; return their mounts."""
    os.makedirs(folder, exist_ok=True)
    texts = {
        "passwd": f"root:x:0:0::/:/usr/sbin/nologin\nagent:x:{uid}:{uid}::{isolation.HOME}:/bin/sh\n",
        "group": f"root:x:0:\nagent:x:{uid}:\n",
        "hosts": "127.0.0.1 localhost sandbox\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "resolv.conf": "",
    }
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    return [[os.path.join(folder, name), f"/etc/{name}"] for name in texts]


def _read_init(fd: int) -> int | None:
    """Return ``child-pid`` from bubblewrap's info document, or None if it died without writing one."""
    import json

    text = b""
    while b"}" not in text:
        if not select.select([fd], [], [], START_S)[0]:
            return None
        chunk = os.read(fd, 4096)
        if not chunk:
            return None
        text += chunk
    return json.loads(text)["child-pid"]


def _await_entry(channel: socket.socket, sandbox: Sandbox) -> None:
    """Wait until ``entry.py`` runs inside, and receive the gateway's listening socket from it."""
    channel.settimeout(START_S)
    try:
        message, fds, _, _ = socket.recv_fds(channel, 16, 1)
    except OSError:
        message, fds = b"", []
    if not message:
        # Only once bubblewrap has ended is its error message complete and its exit code known.
        _ended(sandbox.pidfd, START_S)
        sandbox.reap()
        sandbox.end()
        code = sandbox.exit_code
        sandbox.close()
        raise SandboxFailed(f"the sandbox ended with {code} before its program could start")
    sandbox.gateway = socket.socket(fileno=fds[0]) if fds else None


def _ended(pidfd: int, timeout_s: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_s)[0])


def end_plain(pid: int, mark: str) -> None:
    """End a sandbox without a namespace: its process group, then every process that carries the mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    needle = f"{MARK}={mark}\0".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if needle in file.read():
                    os.kill(int(name), signal.SIGKILL)
