"""The cache directory is used only where no other user could have put something into it, or could exchange it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.runtime import cache
from tracegrad.runtime.cache import cache_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where XDG_CACHE_HOME is: two levels that are not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "above" / "base"))
    return tmp_path / "above" / "base"


def test_what_is_made_is_private(base: Path) -> None:
    before = os.umask(0)
    try:
        folder = cache_folder()
    finally:
        os.umask(before)
    assert folder == base / "tracegrad"
    assert [mode(p) for p in (folder, base, base.parent)] == [0o700] * 3


def test_a_readable_folder_becomes_private(base: Path) -> None:
    folder = cache_folder()
    folder.chmod(0o755)
    assert mode(cache_folder()) == 0o700


@pytest.mark.parametrize("bits", [0o777, 0o707, 0o702])
@pytest.mark.parametrize("level", [0, 1])
def test_a_parent_that_others_may_write_is_refused(base: Path, bits: int, level: int) -> None:
    cache_folder()
    above = (base, base.parent)[level]
    above.chmod(bits)
    with pytest.raises(PermissionError, match=f"{above} can be written by others; set XDG_CACHE_HOME"):
        cache_folder()
    above.chmod(0o1777)  # as /tmp, where the folder can be renamed by its owner only
    assert cache_folder() == base / "tracegrad"


@pytest.mark.parametrize("private", [True, False])
def test_a_group_may_write_a_parent_only_where_it_is_the_users_own(
    base: Path, monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    cache_folder()
    base.chmod(0o770)
    monkeypatch.setattr(cache, "_is_private_group", lambda number: private and number == os.getgid())
    if private:
        assert cache_folder() == base / "tracegrad"
    else:
        with pytest.raises(PermissionError, match="can be written by others"):
            cache_folder()


def test_groups_with_other_members_are_not_private(monkeypatch: pytest.MonkeyPatch) -> None:
    grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
    me, private = pwd.getpwuid(os.getuid()), cache._is_private_group  # pyright: ignore[reportPrivateUsage]

    def group(name: str, *members: str) -> Callable[[int], object]:
        return lambda _: grp.struct_group((name, "x", 4321, list(members)))

    for found, wanted in (
        (group(me.pw_name), True), (group(me.pw_name, me.pw_name), True),
        (group(me.pw_name, "mallory"), False), (group("users"), False),
    ):  # fmt: skip
        monkeypatch.setattr(grp, "getgrgid", found)
        assert private(4321) is wanted
    monkeypatch.undo()
    assert private(987654) is False  # no such group


def test_a_parent_of_another_user_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_folder()
    real = Path.stat

    def elsewhere(self: Path, **options: bool) -> os.stat_result:
        found = list(real(self, **options))
        if self == base.parent:
            found[4] = 12345  # the owner
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", elsewhere)
    with pytest.raises(PermissionError, match=f"{base.parent} belongs to another user"):
        cache_folder()


def test_a_link_in_place_of_the_folder_is_refused_and_one_above_is_followed(base: Path, tmp_path: Path) -> None:
    base.parent.mkdir()
    (tmp_path / "scratch").mkdir(mode=0o700)
    base.symlink_to(tmp_path / "scratch")
    assert cache_folder() == tmp_path / "scratch" / "tracegrad"
    (tmp_path / "scratch").chmod(0o777)
    with pytest.raises(PermissionError, match="scratch can be written by others"):
        cache_folder()
    (tmp_path / "scratch").chmod(0o700)
    (tmp_path / "scratch/tracegrad").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scratch/tracegrad").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is a link"):
        cache_folder()


def test_a_path_that_is_not_absolute_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    if os.uname().sysname != "Darwin":
        assert cache_folder() == tmp_path / "home/.cache/tracegrad"
    assert not (tmp_path / "here").exists()


def test_without_a_home_directory_training_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(FileNotFoundError, match=r"home directory\. Set XDG_CACHE_HOME"):
        cache_folder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # each library is compiled anew
        compiled = tg.compile_forward(
            model=nn.Linear(7, 5), forward=lambda m, x: m(x), inputs={"x": (1, 7)}, device="cpu"
        )
        assert compiled.run(x=np.ones((1, 7))).output.shape == (1, 5)
        compiled.close()
