"""Errors before a daemon is started, each with a remedy."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from engine import MessageStore
from mountctl import preflight
from mountctl.errors import CommandError
from tests.mountctl.conftest import Site, mountctl, succeed


def test_a_missing_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"fuse is missing: load the module"):
        preflight.check_machine(device=tmp_path / "fuse")


def test_a_missing_fusermount3_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="fusermount3 is missing: install it"):
        preflight.fusermount()


def test_a_mount_point_has_to_be_an_empty_directory_with_nothing_on_it(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="does not exist: mkdir"):
        preflight.check_mountpoint(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="is not empty"):
        preflight.check_mountpoint(tmp_path)
    with pytest.raises(CommandError, match="is not a directory"):
        preflight.check_mountpoint(tmp_path / "file")
    MessageStore.open(tmp_path / "store", create=True).close()
    with pytest.raises(CommandError, match="is a store: name an empty directory; the order is `mountctl mount STORE"):
        preflight.check_mountpoint(tmp_path / "store")
    with pytest.raises(CommandError, match="is busy: something is mounted there"):
        preflight.check_mountpoint(Path("/proc"))


def test_a_store_and_its_mount_point_may_not_lie_in_one_another(tmp_path: Path) -> None:
    for store, mountpoint in (
        (tmp_path, tmp_path),
        (tmp_path, tmp_path / "mnt"),
        (tmp_path / "mnt/store", tmp_path / "mnt"),
    ):
        with pytest.raises(CommandError, match="overlap"):
            preflight.check_apart(store, mountpoint)
    preflight.check_apart(tmp_path / "store", tmp_path / "mnt")


def test_a_store_has_to_be_a_directory_or_creatable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match="is not a directory"):
        preflight.check_store(tmp_path / "file", may_create=True)
    with pytest.raises(CommandError, match="a read-only mount creates nothing"):
        preflight.check_store(tmp_path / "new", may_create=False)
    with pytest.raises(CommandError, match="mkdir -p"):
        preflight.check_store(tmp_path / "a/b", may_create=True)
    preflight.check_store(tmp_path / "new", may_create=True)


def test_allow_other_is_for_root_and_for_those_whom_fuse_conf_lets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "fuse.conf"
    config.write_text("#user_allow_other\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    preflight.check_allow_other(config)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CommandError, match="not permitted to ordinary users here: add user_allow_other"):
        preflight.check_allow_other(config)
    config.write_text("mount_max = 1000\nuser_allow_other\n")
    preflight.check_allow_other(config)


def test_who_mounts_a_store_twice_is_told_where_it_is(site: Site, tmp_path: Path) -> None:
    site.mounted()
    (tmp_path / "elsewhere").mkdir()
    for options in ((), ("--read-only",)):
        done = mountctl("mount", *options, site.store, tmp_path / "elsewhere")
        assert done.returncode == 75
        assert f"{site.store} is mounted at {site.mountpoint}: use that, or `mountctl umount" in done.stderr
    succeed("mount", "--follow", site.store, tmp_path / "elsewhere")
    succeed("umount", tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (resource.RLIMIT_NOFILE, "at most 64 open files (ulimit -Hn)"),
        (resource.RLIMIT_FSIZE, "at most 64 bytes a file"),
        (
            resource.RLIMIT_AS,
            "at most 64 bytes of address space (ulimit -v): a daemon that is killed may not be replaced",
        ),
    ],
)
def test_limits_that_a_daemon_would_meet_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: int, words: str
) -> None:
    infinite = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda one: (64, 64) if one == limit else infinite)
    preflight.warn_of_limits()
    assert f"mountctl: warning: {words}" in capsys.readouterr().err
    monkeypatch.setattr(resource, "getrlimit", lambda _: infinite)
    preflight.warn_of_limits()
    assert capsys.readouterr().err == ""
