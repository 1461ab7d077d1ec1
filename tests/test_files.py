"""Files are replaced whole, keep what they are, and survive kills and full disks."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim, safetensors
from tracegrad.errors import InputError
from tracegrad.files import atomic as files
from tracegrad.files.atomic import open_regular, replace_file, replace_files


@pytest.fixture
def train() -> Iterator[tg.CompiledTraining]:
    with tg.compile(
        model=nn.Linear(3, 2), loss=lambda m, x: tg.mean(tg.square(m(x))), inputs={"x": (4, 3)},
        optimizer=optim.adam(lr=0.1), seed=1, device="cpu",
    ) as t:  # fmt: skip
        yield t


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- what a path leads to ---


@pytest.mark.parametrize("old", [0o600, 0o640, 0o444 | 0o200, 0o777])
def test_a_file_keeps_its_permissions(train: tg.CompiledTraining, tmp_path: Path, old: int) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"old")
    path.chmod(old)
    train.save(path)
    assert mode(path) == old and safetensors.read(path).metadata["step"] == "0"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        replace_file(tmp_path / "a", [b"x"])
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == 0o666 & ~umask


def test_the_contents_are_never_more_readable_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o600)
    seen: list[int] = []

    def parts() -> Iterator[bytes]:
        yield b"a" * (1 << 20)
        seen.extend(mode(p) for p in tmp_path.iterdir())

    replace_file(path, parts())
    assert seen == [0o600, 0o600]


def test_a_file_keeps_its_owner_and_group(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    owner = (1234, 2345) if os.geteuid() == 0 else (os.getuid(), os.getgroups()[-1])  # only root gives files away
    os.chown(path, *owner)
    path.chmod(0o640)
    replace_file(path, [b"new"])
    found = path.stat()
    assert (found.st_uid, found.st_gid, mode(path), path.read_bytes()) == (*owner, 0o640, b"new")


def test_a_group_that_cannot_be_kept_gives_no_other_group_its_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o664)
    real = os.fstat

    def elsewhere(handle: int) -> os.stat_result:  # as if the file were another user's
        found = list(real(handle))
        found[5] += 1
        return os.stat_result(found)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "fstat", elsewhere)
    monkeypatch.setattr(os, "fchown", refuse)
    replace_file(path, [b"new"])
    assert mode(path) == 0o644


def test_a_write_protected_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if os.geteuid() == 0:  # who may write everything
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(PermissionError, match="write-protected"):
        replace_file(path, [b"new"])
    assert path.read_bytes() == b"old"


def test_links_are_followed_and_stay(train: tg.CompiledTraining, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    for name, target in {"link": "far/real", "dangling": "far/new", "twice": "link"}.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "far/real").write_bytes(b"old")
    for name in ("link", "dangling", "twice"):
        train.save(tmp_path / name)
        assert (tmp_path / name).is_symlink() and safetensors.read(tmp_path / name).metadata["step"] == "0"
    assert sorted(os.listdir(tmp_path / "far")) == ["new", "real"]


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero"])
def test_a_device_gets_the_bytes_and_stays(train: tg.CompiledTraining, name: str) -> None:
    train.save(name)
    assert stat.S_ISCHR(os.stat(name).st_mode)


def test_a_pipe_gets_the_bytes_and_stays(train: tg.CompiledTraining, tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", tmp_path / "got"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.write_bytes(pipe.read_bytes()))
    reader.start()
    train.save(pipe)
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and safetensors.read(got).metadata["step"] == "0"


def test_a_pipe_that_nobody_reads_is_an_error_not_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracegrad.files.atomic.SECONDS_FOR_A_READER", 0.05)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no process reads from this pipe"):
        replace_file(tmp_path / "pipe", [b"x"])


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no folder .*nowhere"):
        replace_file(tmp_path / "nowhere/a", [b"x"])
    with pytest.raises(InputError, match="the path is empty; name a file"):
        replace_file("", [b""])
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        replace_file(tmp_path, [b"x"])


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_reading_takes_regular_files_only_and_never_waits(tmp_path: Path, what: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = {"pipe": str(tmp_path / "pipe"), "device": "/dev/zero", "folder": str(tmp_path)}[what]
    with pytest.raises((InputError, IsADirectoryError)), open_regular(path):
        pass


# --- full disks, kills ---


def test_a_full_disk_leaves_the_old_file_and_the_training_goes_on(train: tg.CompiledTraining, tmp_path: Path) -> None:
    path = tmp_path / "c"
    train.save(path)
    before = path.read_bytes()
    x = np.ones((4, 3), np.float32)
    assert train.step(x=x).step == 1
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(OSError, match=r"the old file is unchanged.*c'") as e:
            train.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert e.value.filename == str(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["c"]
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        train.save("/dev/full")
    assert train.step(x=x).step == 2
    train.save(path)
    assert safetensors.read(path).metadata["step"] == "2"


def test_several_files_are_complete_before_the_first_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left.*/b'"):
        replace_files({tmp_path / "a": [b"new"], tmp_path / "b": broken()})
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


KILLS = """
import os, signal, sys, time
from tracegrad.files.atomic import replace_file

folder, rounds = sys.argv[1], int(sys.argv[2])
path, size, left = os.path.join(folder, "a"), 64 * 4096, 0
replace_file(path, [bytes(size)])
for k in range(rounds):
    child = os.fork()
    if child == 0:
        for n in range(10**6):
            replace_file(path, (bytes([n % 251]) * 4096 for _ in range(64)))
    time.sleep(0.02 * k / rounds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    data = open(path, "rb").read()
    assert len(data) == size and len(set(data)) == 1, (len(data), set(data))
    names = os.listdir(folder)
    assert len(names) <= 2, names  # each writer deletes what the one before it left
    left += len(names) - 1
replace_file(os.path.join(folder, "b"), [b"x"])
assert sorted(os.listdir(folder)) == ["a", "b"], os.listdir(folder)
assert left, "no kill came within a write"
"""


def test_a_kill_at_any_moment_leaves_a_whole_file_and_the_next_write_cleans_up(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLS, str(tmp_path), "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_partial_files_of_living_writers_are_left_alone(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"a"
        replace_file(tmp_path / "b", [b"b"])
        assert len(os.listdir(tmp_path)) == 2
        yield b"a"

    replace_file(tmp_path / "a", parts())
    assert (tmp_path / "a").read_bytes() == b"aa" and sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_many_writers_of_one_file_leave_the_contents_of_one(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write(k: int) -> None:
        for _ in range(20):
            replace_file(path, [bytes([k]) * 5000, bytes([k]) * 5000])

    threads = [threading.Thread(target=write, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        if path.exists():
            data = path.read_bytes()
            assert len(data) == 10_000 and len(set(data)) == 1
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("have", ["none at all", "none in this folder"])
def test_without_locks_only_old_leftovers_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, have: str
) -> None:
    """As in a browser and on Windows, and on some network file systems."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    if have == "none at all":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr(files.fcntl, "flock", refuse)
    for name, age in (("old", 7200), ("new", 60)):
        path = tmp_path / f".tracegrad-{name}.part"
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age,) * 2)
    replace_files({tmp_path / "a": [b"a"], tmp_path / "b": [b"b"]})
    assert sorted(os.listdir(tmp_path)) == [".tracegrad-new.part", "a", "b"]
