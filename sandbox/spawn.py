"""Starts one sandbox and ends it for certain. Standard library only; used by supervisor and evaluator."""

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
"""Environment variable by which a plain process's descendants are found."""


class Sandbox:
    """A started sandbox: ``bwrap`` is its monitor here, ``init`` the first process of its namespace.

    ``gateway`` is the listening socket of 127.0.0.1:PORT inside, or None. The program starts at
    ``release``; until then its starter can record what has to be ended.
    """

    def __init__(
        self, kind: str, pid: int, init: int, mark: str, claim: socket.socket | None, channel: socket.socket
    ) -> None:
        self.kind, self.pid, self.init, self.mark, self._channel = kind, pid, init, mark, channel
        self.gateway: socket.socket | None = None
        self.exit_code: int | None = None
        self.pidfd = os.pidfd_open(pid)
        # Gone already when the program was very short; then there is nothing to watch either.
        self.initfd = _pidfd(init)
        self._claim = claim
        self._reaped = False

    def release(self) -> None:
        """Let the program start. If the sandbox has ended meanwhile, ``reap`` tells."""
        with contextlib.suppress(ConnectionError):
            self._channel.send(b"g")

    def reap(self) -> bool:
        """Collect the exit code if the program has ended. 128 + n for signal n."""
        if not self._reaped:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code, self._reaped = (code if code >= 0 else 128 - code), True
        return self._reaped

    def end(self) -> None:
        """Kill every process of the sandbox and return when none is left.

        Raises SandboxFailed if one is still there after ten seconds. The kernel ends a namespace's
        first process only after all the others, so its end is the end of all.
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
        """Give back descriptors and the user id. Only after ``end``."""
        for pidfd in (self.initfd, self.pidfd):
            if pidfd is not None:
                os.close(pidfd)
        for held in (self.gateway, self._claim, self._channel):
            if held is not None:
                held.close()
        self.initfd = self.gateway = self._claim = None


def start(spec: dict[str, Any], directory: str, output: int) -> Sandbox:
    """Start the program of a spec (see ``HarnessSpec``) with ``output`` as its stdout and stderr.

    Raises SandboxFailed when isolation could not be set up; nothing is left running then.
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
        theirs.close()
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
    read_only = spec["read_only"] + _identity(os.path.join(directory, "etc"), uid if uid >= 0 else 1000)
    options = isolation.bwrap_options(uid=uid, read_only=read_only, writable=spec["writable"], cwd="/")
    port = isolation.PORT if spec["gateway_socket"] else 0
    with contextlib.ExitStack() as stack:
        info_read, info_write = os.pipe()
        stack.callback(os.close, info_read)
        # By descriptor: a command line is readable inside, and would tell paths of this machine.
        options_fd = _memory(b"\0".join(map(os.fsencode, options)))
        stack.callback(os.close, options_fd)
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
    limits = spec["limits"] | {"processes": 0}
    argv = isolation.entry_argv(uid=uid, cwd=spec["cwd"], control=control, entry=entry, **limits)
    mark = f"{os.getpid()}-{os.path.basename(directory)}"
    pid = _spawn(argv + spec["argv"], spec["env"] | {MARK: mark}, output, [control], own_session=True)
    return pid, pid, mark


def _spawn(
    argv: list[str], env: dict[str, str], output: int, inherited: list[int], *, own_session: bool = False
) -> int:
    # posix_spawn, not fork: the evaluator calls this from a big process with many threads. A dup2 of
    # a descriptor onto itself lets the child inherit it without making it inheritable here.
    actions: list[Any] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in inherited]
    try:
        return os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsid=own_session)
    except OSError as error:
        raise SandboxFailed(f"{argv[0]} cannot be started: {error.strerror}") from error


def give(folder: str, uid: int) -> None:
    """Make a tree the property of a sandbox's user. Links are changed, never followed."""
    os.chown(folder, uid, uid, follow_symlinks=False)
    for path, folders, files in os.walk(folder):
        for name in folders + files:
            os.chown(os.path.join(path, name), uid, uid, follow_symlinks=False)


def _identity(folder: str, uid: int) -> list[list[str]]:
    """Files of /etc that name the sandbox's user and hosts, made for it."""
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


def _memory(content: bytes) -> int:
    fd = os.memfd_create("bwrap-options")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read_init(fd: int) -> int | None:
    """``child-pid`` of bubblewrap's info document; None when it died without one."""
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
    """Wait until ``entry.py`` runs inside, and take the gateway's listening socket from it."""
    channel.settimeout(START_S)
    try:
        message, fds, _, _ = socket.recv_fds(channel, 16, 1)
    except OSError:
        message, fds = b"", []
    if not message:
        # What bubblewrap has to say comes with its own end.
        _ended(sandbox.pidfd, START_S)
        sandbox.reap()
        sandbox.end()
        code = sandbox.exit_code
        sandbox.close()
        raise SandboxFailed(f"the sandbox ended with {code} before its program could start")
    sandbox.gateway = socket.socket(fileno=fds[0]) if fds else None


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _ended(pidfd: int, timeout_s: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_s)[0])


def end_plain(pid: int, mark: str) -> None:
    """Without a namespace: the session's group, then whatever still carries the mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    needle = f"{MARK}={mark}\0".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if needle in file.read():
                    os.kill(int(name), signal.SIGKILL)
