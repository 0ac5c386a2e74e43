"""Limits of a program in a sandbox: files, network, processes, memory."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sandbox import isolation
from sandbox.harness_process import HarnessSpec, Limits, kill, poll, start_or_attach
from sandbox.isolation import claim_uid
from tests.sandbox.conftest import (
    Attempts,
    Gateway,
    calls_shell,
    needs_bwrap,
    says,
    wait_exited,
    wait_until,
)

pytestmark = needs_bwrap
AGENT = Path(__file__).resolve().parents[2] / "examples" / "tiny_harness"


def test_only_the_workspace_and_named_system_folders_are_visible(attempts: Attempts, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    secret.chmod(0o644)
    _, output = attempts.run(
        f"cat {secret}; ls /; ls /root/.ssh /srv /opt /home/* /etc/shadow /sys; echo; ls -a ~ 2>&1"
    )
    assert "do not read" not in output
    top = set(re.findall(r"^\w+$", output.split("\n\n")[0], re.M))
    assert top <= {
        "bin", "dev", "etc", "gyre", "home", "lib", "lib32", "lib64", "libx32", "proc", "root", "sbin",
        "tmp", "usr", "var", "workspace", isolation.python_prefix().split("/")[1],
    }  # fmt: skip
    assert output.count("No such file") >= 5


def test_system_folders_and_the_entry_program_cannot_be_written(attempts: Attempts) -> None:
    status, output = attempts.run(
        "for f in /x /usr/x /etc/x /gyre/entry.py /etc/passwd /var/x; do (echo x > $f) 2>/dev/null"
        f" && echo wrote $f; done; (echo x > {isolation.python_prefix()}/x) 2>/dev/null && echo wrote python;"
        " echo kept > /workspace/k; echo kept > /tmp/k; echo done"
    )
    assert status.exit_code == 0
    assert output == "done\n"


def test_the_environment_of_the_worker_does_not_reach_the_harness(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    _, output = attempts.run("env", env={"OPENAI_API_KEY": "token"})
    assert "hunter2" not in output
    assert "OPENAI_API_KEY=token" in output


def test_services_on_this_machine_are_unreachable(attempts: Attempts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_UNIX) as abstract:
        port = listener.getsockname()[1]
        abstract.bind(f"\0gyre-test-{os.getpid()}")
        abstract.listen()
        _, output = attempts.run(
            f'{isolation.python()} -c "\nimport socket\n'
            f"for f, a in ((socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_INET, ('10.0.0.1', 80)),"
            f" (socket.AF_UNIX, '\\0gyre-test-{os.getpid()}')):\n"
            "  try: socket.socket(f).connect(a); print('reached', a)\n"
            '  except OSError as e: print(type(e).__name__)\n"'
        )
        assert "reached" not in output
        assert len(output.splitlines()) == 3


def test_a_sandbox_has_its_own_namespaces_and_can_create_no_more(attempts: Attempts) -> None:
    kinds = ("user", "pid", "net", "ipc", "uts", "mnt")
    _, output = attempts.run(
        "for n in user pid net ipc uts mnt; do readlink /proc/self/ns/$n; done; unshare -U true && echo more;"
        "grep -E 'NoNewPrivs|CapEff' /proc/self/status"
    )
    inside = dict(zip(kinds, output.split(), strict=False))
    if isolation.probe() == isolation.BWRAP:
        del inside["user"]
    assert all(inside[name] != os.readlink(f"/proc/self/ns/{name}") for name in inside)
    assert "more" not in output
    assert re.search(r"NoNewPrivs:\s+1", output)
    assert re.search(r"CapEff:\s+0+$", output, re.M)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a sandbox a user of its own")
def test_each_sandbox_has_its_own_real_user(attempts: Attempts) -> None:
    specs = [attempts.spec("/bin/sh", "-c", "touch f; sleep 60") for _ in range(3)]
    for spec in specs:
        start_or_attach(spec)
    files = [spec.directory / "workspace" / "f" for spec in specs]
    wait_until(lambda: all(file.exists() for file in files))
    owners = {file.stat().st_uid for file in files}
    assert len(owners) == 3
    assert min(owners) >= isolation.FIRST_UID
    for spec in specs:
        kill(spec.directory)


def test_a_user_id_is_claimed_once_and_freed() -> None:
    first, held = claim_uid()
    second, other = claim_uid()
    held.close()
    again, third = claim_uid()
    other.close()
    third.close()
    assert second != first
    assert again == first


def test_a_fork_bomb_is_bounded_and_ends_with_its_sandbox(attempts: Attempts) -> None:
    limits = Limits(processes=40)
    script = "i=0; while [ $i -lt 200 ]; do sleep 300 & i=$((i+1)); done; wait"
    spec = attempts.spec("/bin/sh", "-c", script, limits=limits)
    start_or_attach(spec)
    status = wait_exited(spec.directory)
    assert status.exit_code != 0
    assert "fork" in (spec.directory / "output.log").read_text()
    assert not _processes_of(spec.directory)


def test_a_file_cannot_grow_beyond_the_cap(attempts: Attempts) -> None:
    status, output = attempts.run(
        "head -c 3000000 /dev/zero > big; ls -l big | cut -d' ' -f5", limits=Limits(workspace_bytes=1 << 20)
    )
    assert status.exit_code == 0
    assert int(output.split()[-1]) <= 1 << 20


def test_many_files_beyond_the_cap_end_the_harness(attempts: Attempts) -> None:
    status, _ = attempts.run(
        "i=0; while [ $i -lt 8 ]; do head -c 500000 /dev/zero > f$i; i=$((i+1)); done; sleep 60",
        limits=Limits(workspace_bytes=1 << 20),
    )
    assert status.exit_code is None
    assert status.failure is not None
    assert "bytes allowed" in status.failure


@pytest.mark.parametrize("address_space", [True, False])
def test_memory_is_bounded_per_process_and_in_total(attempts: Attempts, address_space: bool) -> None:
    limits = Limits(memory_bytes=200 << 20, address_space=address_space)
    program = "x = bytearray(300 << 20); import time; time.sleep(60)"
    status, output = attempts.run(f'{isolation.python()} -I -S -c "{program}"', limits=limits)
    if address_space:
        assert "MemoryError" in output
    else:
        assert status.failure is not None
        assert "memory" in status.failure


def test_temporary_folders_have_a_size(attempts: Attempts) -> None:
    _, output = attempts.run("df -B1 --output=size,target /tmp /dev/shm | tail -2")
    assert [line.split()[0] for line in output.splitlines()] == [str(isolation.TMP_BYTES)] * 2


def test_the_token_is_on_no_command_line(attempts: Attempts) -> None:
    spec = attempts.spec("/bin/sh", "-c", "cat /proc/*/cmdline; sleep 60", env={"KEY": "gy-secret-token"})
    start_or_attach(spec)
    wait_until(lambda: poll(spec.directory).state == "running")
    wait_until(lambda: (spec.directory / "output.log").stat().st_size > 0)
    seen = b"".join(_command_line(name) for name in os.listdir("/proc") if name.isdigit())
    assert b"gy-secret-token" not in seen
    assert (spec.directory / "spec.json").stat().st_mode & 0o777 == 0o600
    # The harness must not see paths of this machine either.
    assert str(spec.directory) not in (spec.directory / "output.log").read_text()


def test_the_gateway_is_found_again_after_a_restart(
    attempts: Attempts, gateway: Gateway, tmp_path: Path
) -> None:
    gateway.script = [calls_shell("echo one > one; touch waiting; while [ ! -e go ]; do sleep 0.05; done"),
                      says("done")]  # fmt: skip
    spec = _tiny(attempts, gateway, tmp_path)
    start_or_attach(spec)
    wait_until(lambda: (spec.directory / "workspace" / "waiting").exists())
    gateway.stop()
    (spec.directory / "workspace" / "go").touch()
    gateway.start()
    status = wait_exited(spec.directory)
    assert status.exit_code == 0
    assert len(gateway.requests) == 2
    assert gateway.keys == ["Bearer the-token"] * 2


def test_a_connection_is_held_while_the_gateway_is_away(attempts: Attempts, gateway: Gateway) -> None:
    gateway.script = [says("done")]
    gateway.stop()
    # This client does not retry.
    program = (
        "import http.client, os\n"
        f"c = http.client.HTTPConnection('127.0.0.1', {isolation.PORT})\n"
        "c.request('POST', '/v1/chat/completions', '{}', {'Authorization': 'k'})\n"
        "open('asked', 'w').close()\n"
        "print(c.getresponse().status)\n"
    )
    spec = attempts.spec(isolation.python(), "-I", "-S", "-c", program, gateway=str(gateway.path))
    start_or_attach(spec)
    wait_until(lambda: (spec.directory / "workspace" / "asked").exists())
    gateway.start()
    assert wait_exited(spec.directory).exit_code == 0
    assert (spec.directory / "output.log").read_text() == "200\n"


def test_large_requests_and_answers_pass_unchanged(attempts: Attempts, gateway: Gateway) -> None:
    gateway.script = [says("x" * 3_000_000)]
    program = (
        "import http.client, json\n"
        f"c = http.client.HTTPConnection('127.0.0.1', {isolation.PORT})\n"
        "body = json.dumps({'m': 'y' * 2_000_000})\n"
        "c.request('POST', '/v1/chat/completions', body, {'Authorization': 'k'})\n"
        "print(len(c.getresponse().read()))\n"
    )
    spec = attempts.spec(isolation.python(), "-I", "-S", "-c", program, gateway=str(gateway.path))
    start_or_attach(spec)
    assert wait_exited(spec.directory).exit_code == 0
    answer = json.dumps({"choices": [{"message": gateway.script[0]}]})
    assert int((spec.directory / "output.log").read_text()) == len(answer)
    assert gateway.requests == [{"m": "y" * 2_000_000}]


PLAIN_USER = """
import json, sys, time
from pathlib import Path
sys.path.append(sys.argv[1])
from sandbox.harness_process import HarnessSpec, Limits, kill, poll, start_or_attach
folder = Path(sys.argv[2])
for name in ("workspace", "home"):
    (folder / name).mkdir()
script = "id -u; unshare -U true && echo more; cat /etc/shadow; i=0; echo x > out;"
script += "while [ $i -lt 90 ]; do sleep 300 & i=$((i+1)); done"
spec = HarnessSpec(
    folder, ["/bin/sh", "-c", script], {"PATH": "/usr/bin:/bin"}, "/workspace", 20.0,
    limits=Limits(processes=30),
    writable=[[str(folder / "workspace"), "/workspace"], [str(folder / "home"), "/home/agent"]],
)
start_or_attach(spec)
while poll(folder).state != "exited":
    time.sleep(0.02)
status = kill(folder)
print(json.dumps([spec.isolation, status.exit_code, status.failure, (folder / "output.log").read_text()]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="every other test runs as a plain user already")
def test_a_plain_user_gets_the_same_sandbox() -> None:
    """Run as uid 65534, with an interpreter and a folder that such a user can reach."""
    python, root = Path("/usr/bin/python3"), Path(isolation.__file__).parents[1]
    folder = Path(tempfile.mkdtemp(prefix="gyre-plain-", dir="/tmp"))
    os.chown(folder, 65534, 65534)
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    try:
        if subprocess.run(
            [*drop, python, "-c", "import sys; open(sys.argv[1])", isolation.__file__]
        ).returncode:
            pytest.skip("a plain user cannot start Python here or read this checkout")
        command = [*drop, python, "-c", PLAIN_USER, root, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        kind, exit_code, failure, output = json.loads(done.stdout)
        assert kind == isolation.BWRAP_USERNS
        assert failure is None
        assert exit_code != 0
        assert output.startswith("1000\n")
        assert "fork" in output
        assert "more" not in output.splitlines()
        assert (folder / "workspace" / "out").exists()
    finally:
        shutil.rmtree(folder)


def test_without_bubblewrap_one_warning_lists_what_is_not_isolated() -> None:
    code = "import sys; sys.path.append(sys.argv[1]); from sandbox.isolation import probe;"
    code += "print(probe(), probe())"
    root = str(Path(isolation.__file__).parents[1])
    done = subprocess.run(
        [isolation.python(), "-I", "-c", code, root], capture_output=True, text=True, env={"PATH": "/nowhere"}
    )
    assert done.stdout.split() == [isolation.PLAIN] * 2
    assert done.stderr.count("can read every file of this user") == 1


def test_what_runs_per_execution_imports_no_third_party_package() -> None:
    modules = "spawn, watch, relay, supervise, entry, isolation"
    code = f"import sys; sys.path.append(sys.argv[1]); from sandbox import {modules}; print(*sys.modules)"
    root = str(Path(isolation.__file__).parents[1])
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, root], capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "gyre" in loaded
    assert not loaded & {"pydantic", "sqlalchemy", "temporalio", "dataclasses", "asyncio"}


def _tiny(attempts: Attempts, gateway: Gateway, tmp_path: Path) -> HarnessSpec:
    instruction = tmp_path / "instruction.md"
    instruction.write_text("write one")
    spec = attempts.spec(
        isolation.python(), "-I", "-S", "/harness/agent/agent.py", "/gyre/instruction.md",
        gateway=str(gateway.path),
        env={"OPENAI_BASE_URL": f"http://127.0.0.1:{isolation.PORT}/v1", "OPENAI_API_KEY": "the-token"},
    )  # fmt: skip
    spec.read_only.extend([[str(AGENT), "/harness/agent"], [str(instruction), "/gyre/instruction.md"]])
    return spec


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _processes_of(directory: Path) -> list[str]:
    """Return the processes that have the attempt's workspace mounted."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if str(directory / "workspace") in Path(f"/proc/{name}/mountinfo").read_text():
                    found.append(name)
            except OSError:
                continue
    return found
