"""Task folders, provisioned workspaces, capture and restore."""

import io
import os
import socket
import stat
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.contracts.errors import BadInput, ProvisionFailed, SnapshotFailed, WorkspaceUnusable
from gyre.settings.task_folders import current_sha256, load_task, load_tasks
from sandbox import workspace
from sandbox.snapshot import capture, restore
from tests.sandbox.conftest import make_task


def test_tasks_are_loaded_in_order_with_their_contents_hashed(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_task(tmp_path / name, instruction=f"do {name}")
    tasks = load_tasks(tmp_path)
    assert [(task.name, task.path) for task in tasks] == [("a", tmp_path / "a"), ("b", tmp_path / "b")]
    (tmp_path / "a" / "tests" / "test.sh").write_text("echo 0")
    assert load_task(tmp_path / "a").sha256 != tasks[0].sha256
    assert load_task(tmp_path / "b").sha256 == tasks[1].sha256


def test_a_hash_is_recomputed_only_after_a_file_was_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_task(make_task(tmp_path / "a"))
    assert current_sha256(task.path) == task.sha256
    script = task.path / "tests" / "test.sh"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read again"))
        assert current_sha256(task.path) == task.sha256
    before, times = script.read_text(), script.stat()
    script.write_text(before.replace("1", "0"))
    os.utime(script, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert current_sha256(task.path) == load_task(task.path).sha256 != task.sha256
    script.write_text(before)
    assert current_sha256(task.path) == task.sha256
    script.chmod(0o700)
    assert current_sha256(task.path) != task.sha256


@pytest.mark.parametrize("missing", ["instruction.md", "tests/test.sh"])
def test_a_folder_that_is_no_task_is_refused_in_one_sentence(tmp_path: Path, missing: str) -> None:
    (make_task(tmp_path / "a") / missing).unlink()
    with pytest.raises(BadInput, match=missing):
        load_tasks(tmp_path)


def test_an_unreadable_task_toml_and_empty_and_missing_folders_are_refused(tmp_path: Path) -> None:
    (make_task(tmp_path / "a") / "task.toml").write_text("= nonsense")
    with pytest.raises(BadInput, match=r"task\.toml"):
        load_task(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(BadInput, match="folder"):
            load_tasks(folder)


def test_provisioning_copies_once_and_leaves_work_in_place(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task")
    (task / "environment" / "Dockerfile").write_text("FROM x")
    (task / "environment" / "link").symlink_to("README")
    first = workspace.provision(task / "environment", tmp_path / "attempt")
    work = tmp_path / "attempt" / "workspace"
    assert sorted(os.listdir(work)) == ["README", "link"]
    (work / "README").write_text("changed")
    assert workspace.provision(task / "environment", tmp_path / "attempt") == first
    assert (work / "README").read_text() == "changed"


def test_a_half_made_workspace_is_recreated(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task")
    (tmp_path / "attempt" / "workspace").mkdir(parents=True)
    (tmp_path / "attempt" / "workspace" / "half").touch()
    workspace.provision(task / "environment", tmp_path / "attempt")
    assert os.listdir(tmp_path / "attempt" / "workspace") == ["README"]


def test_a_workspace_that_cannot_be_created_is_a_provision_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProvisionFailed):
        workspace.provision(make_task(tmp_path / "task") / "environment", tmp_path / "file" / "attempt")


def test_changed_files_counts_additions_changes_and_removals(tmp_path: Path) -> None:
    task = make_task(tmp_path / "task")
    (task / "environment" / "gone").write_text("x")
    workspace.provision(task / "environment", tmp_path / "attempt")
    before, work = workspace.provisioned_state(tmp_path / "attempt"), tmp_path / "attempt" / "workspace"
    assert workspace.changed_files(before, workspace.file_state(work)) == 0
    (work / "new").touch()
    (work / "gone").unlink()
    (work / "README").write_text("start here!\n")
    assert workspace.changed_files(before, workspace.file_state(work)) == 3


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
TREES = st.dictionaries(
    NAMES, st.binary(max_size=300) | st.dictionaries(NAMES, st.binary(max_size=50), max_size=3)
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_restoring_a_capture_gives_the_same_files(
    tree: dict, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    _write(folder / "work", tree)
    manifest = capture(folder / "work", folder / "archive")
    restore(folder / "archive", folder / "again")
    assert workspace.file_state(folder / "again") == workspace.file_state(folder / "work")
    assert manifest.num_files == len(workspace.file_state(folder / "work"))
    assert capture(folder / "again", folder / "archive2").sha256 == manifest.sha256


def test_times_and_owners_do_not_change_an_archive(tmp_path: Path) -> None:
    _write(tmp_path / "a", {"x": b"1", "d": {"y": b"2"}})
    _write(tmp_path / "b", {"d": {"y": b"2"}, "x": b"1"})
    os.utime(tmp_path / "b" / "x", (1, 1))
    if os.geteuid() == 0:
        os.chown(tmp_path / "b" / "x", 12345, 12345)
    assert capture(tmp_path / "a", tmp_path / "1").sha256 == capture(tmp_path / "b", tmp_path / "2").sha256


def test_links_are_kept_and_never_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("private")
    work = tmp_path / "work"
    work.mkdir()
    for name, target in (("dir", secret), ("file", secret / "key"), ("dangling", "nowhere"), ("up", "../..")):
        (work / name).symlink_to(target)
    manifest = capture(work, tmp_path / "archive")
    assert (manifest.num_files, manifest.num_bytes) == (4, 0)
    assert (
        b"private"
        not in zstandard.ZstdDecompressor().stream_reader((tmp_path / "archive").read_bytes()).read()
    )
    restore(tmp_path / "archive", tmp_path / "again")
    assert os.readlink(tmp_path / "again" / "dir") == str(secret)
    assert os.listdir(secret) == ["key"]


def test_special_files_are_skipped_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    os.mkfifo(work / "pipe")
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    (work / "file").write_text("kept")
    manifest = capture(work, tmp_path / "archive")
    assert manifest.num_files == 1
    assert manifest.num_skipped == 2
    assert all("not a file" in line for line in manifest.skipped)
    assert manifest.processes == "not captured"


def test_permissions_are_kept_except_set_user_id(tmp_path: Path) -> None:
    work = tmp_path / "work"
    _write(work, {"run": b"", "closed": {"inside": b"x"}})
    (work / "run").chmod(0o4755)
    (work / "closed" / "inside").chmod(0o000)
    (work / "closed").chmod(0o000)
    capture(work, tmp_path / "archive")
    restore(tmp_path / "archive", tmp_path / "again")
    assert stat.S_IMODE((tmp_path / "again" / "run").stat().st_mode) == 0o755
    workspace.walk(tmp_path / "again")
    assert (tmp_path / "again" / "closed").is_dir()


def test_a_workspace_over_its_cap_is_not_captured(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with (work / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(WorkspaceUnusable, match="bytes allowed"):
        capture(work, tmp_path / "archive", max_bytes=1 << 20)


def test_names_that_are_not_text_survive(tmp_path: Path) -> None:
    work = os.fsencode(tmp_path / "work")
    os.mkdir(work)
    with open(os.path.join(work, b"caf\xe9"), "wb") as file:
        file.write(b"x")
    capture(tmp_path / "work", tmp_path / "archive")
    restore(tmp_path / "archive", tmp_path / "again")
    assert os.listdir(os.fsencode(tmp_path / "again")) == [b"caf\xe9"]


@pytest.mark.parametrize("name", ["../escaped", "/tmp/gyre-escaped", "a/../../escaped", "link/escaped"])
def test_an_archive_writes_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
    entry = tarfile.TarInfo(name)
    entry.size = 1
    _archive(tmp_path / "archive", [link, entry])
    with pytest.raises(SnapshotFailed):
        restore(tmp_path / "archive", tmp_path / "folder")
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/gyre-escaped").exists()


def test_hard_links_and_devices_in_an_archive_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        entry = tarfile.TarInfo("x")
        entry.type, entry.linkname = kind, "/etc/passwd"
        _archive(tmp_path / "archive", [entry])
        with pytest.raises(SnapshotFailed, match="neither"):
            restore(tmp_path / "archive", tmp_path / "folder")


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    _write(tmp_path / "work", {"x": os.urandom(100_000)})
    capture(tmp_path / "work", tmp_path / "archive")
    data = (tmp_path / "archive").read_bytes()
    (tmp_path / "archive").write_bytes(data[: len(data) // 2])
    with pytest.raises(SnapshotFailed):
        restore(tmp_path / "archive", tmp_path / "again")


def _write(folder: Path, tree: dict) -> None:
    folder.mkdir()
    for name, content in tree.items():
        if isinstance(content, dict):
            _write(folder / name, content)
        else:
            (folder / name).write_bytes(content)


def _archive(path: Path, entries: list[tarfile.TarInfo]) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for entry in entries:
            archive.addfile(entry, io.BytesIO(b"x" * entry.size))
    path.write_bytes(zstandard.ZstdCompressor().compress(plain.getvalue()))
