"""Whose a dropped file is, kept with the file."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from engine import DropBox, FileOwner, MessageStore
from engine.write.drop_owner import ATTRIBUTE
from tests.engine.storetools import opened

ALICE, BOB = FileOwner(64_101, 64_201, 0o600), FileOwner(64_102, 64_202, 0o664)
SOMEBODY = 64_999

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def refuse(number: int) -> object:
    """A system call that is refused."""

    def call(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon is no root."""
    monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY)


def box_of(store: MessageStore) -> DropBox:
    return store.drop_box("t")


def make(store: MessageStore, name: str, owner: FileOwner) -> Path:
    """A file that waits; where it is."""
    box = box_of(store)
    file, descriptor = box.create(name, owner)
    os.close(descriptor)
    return box.path(file)


def owners(store: MessageStore) -> dict[str, FileOwner | None]:
    """As the next user of the box finds them."""
    return {name: file.owner for name, file in box_of(store).files.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path) as store:
        store.create_topic("t", 1)
    return tmp_path


@AS_ROOT
def test_root_gives_the_file_to_its_dropper(path: Path) -> None:
    with opened(path) as store:
        found = make(store, "~a~", ALICE).lstat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == ALICE
    with opened(path) as store:
        box = box_of(store)
        assert owners(store) == {"~a~": ALICE}
        box.set_owner(box.files["~a~"], BOB._replace(mode=0o4755))
        assert owners(store) == {"~a~": BOB._replace(mode=0o755)}


def test_without_that_right_an_attribute_says_whose_it_is(path: Path, as_user: None) -> None:
    with opened(path) as store:
        file = make(store, "~a~", ALICE)
        assert (file.lstat().st_uid, stat.S_IMODE(file.lstat().st_mode)) == (os.getuid(), 0o600)
        assert os.getxattr(file, ATTRIBUTE) == b"64101 64201 600"
    with opened(path) as store:
        box = box_of(store)
        box.set_owner(box.files["~a~"], BOB)
        assert owners(store) == {"~a~": BOB}


@AS_ROOT
def test_who_goes_on_with_the_store_finds_what_the_other_noted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as store:
        make(store, "~root~", ALICE)
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: SOMEBODY)
            make(store, "~user~", ALICE)
            assert owners(store) == {"~root~": None, "~user~": ALICE}
        assert owners(store) == {"~root~": ALICE, "~user~": ALICE}
        box = box_of(store)
        box.set_owner(box.files["~user~"], BOB)
        assert owners(store) == {"~root~": ALICE, "~user~": BOB}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP])
def test_where_nothing_can_be_noted_nobody_knows(
    path: Path, monkeypatch: pytest.MonkeyPatch, as_user: None, number: int
) -> None:
    monkeypatch.setattr(os, "setxattr", refuse(number))
    with opened(path) as store:
        make(store, "~a~", ALICE)
        assert owners(store) == {"~a~": None}


@pytest.mark.parametrize("planted", [b"", b"0", b"0 0 7777", b"-1 0 600", b"4294967295 0 600", "² 0 600".encode()])
def test_an_attribute_that_we_did_not_write_says_nothing(path: Path, as_user: None, planted: bytes) -> None:
    with opened(path) as store:
        os.setxattr(make(store, "~a~", ALICE), ATTRIBUTE, planted)
        assert owners(store) == {"~a~": None}


@AS_ROOT
def test_a_quota_of_the_new_owner_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fchown", refuse(errno.EDQUOT))
    with opened(path) as store:
        with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
            make(store, "~a~", ALICE)
        assert list((path / "fsstore/drop/t/all/staged").iterdir()) == []
