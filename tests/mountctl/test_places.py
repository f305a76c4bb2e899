"""The meaning of a PLACE: the mount table is parsed correctly, and each side of a mount leads to the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine import Message, MessageStore
from mountctl.errors import CommandError
from mountctl.places import Mount, find, mount_at, mount_of, mounts
from tests.mountctl.conftest import Site, mountctl, succeed

TABLE = r"""22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 22 0:35 / /proc rw,nosuid shared:12 - proc proc rw
50 22 0:50 / /mnt/mq rw,nosuid,nodev,relatime shared:30 - fuse.fsstore /srv/store rw,user_id=0,group_id=0
51 22 0:51 / /mnt/with\040space ro,nosuid - fuse.fsstore /srv/my\040store ro,user_id=0
52 22 0:52 / /mnt/second ro,nosuid shared:31 master:2 - fuse.fsstore /srv/store ro,user_id=0
53 22 0:53 / /mnt/other rw - fuse.sshfs host:/srv/store rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    return path


def test_only_our_mounts_are_found_with_their_names_decoded(table: Path) -> None:
    assert mounts(table) == [
        Mount(Path("/mnt/mq"), Path("/srv/store"), False, 0, "0:50"),
        Mount(Path("/mnt/with space"), Path("/srv/my store"), True, 0, "0:51"),
        Mount(Path("/mnt/second"), Path("/srv/store"), True, 0, "0:52"),
    ]


def test_a_mount_point_a_path_below_it_and_the_store_all_mean_the_same_mount(table: Path) -> None:
    for text in ("/mnt/mq", "/mnt/mq/orders/0", "/mnt/mq/"):
        place = find(text, table)
        assert (place.store, place.mount) == (Path("/srv/store"), mounts(table)[0])
    assert find("/mnt/with space/a", table).store == Path("/srv/my store")


def test_a_store_mounted_twice_is_reached_where_it_can_be_written(table: Path) -> None:
    found = mount_of(Path("/srv/store"), table)
    assert found is not None
    assert found.mountpoint == Path("/mnt/mq")


def test_the_newest_of_stacked_mounts_counts(table: Path) -> None:
    table.write_text(TABLE + "60 50 0:60 / /mnt/mq rw - fuse.fsstore /srv/above rw,user_id=0\n")
    found = mount_at(Path("/mnt/mq"), table)
    assert found is not None
    assert found.store == Path("/srv/above")


def test_an_unmounted_directory_is_a_store_and_anything_else_an_error_that_says_so(table: Path, tmp_path: Path) -> None:
    assert find(str(tmp_path), table).mount is None
    (tmp_path / "file").touch()
    for name, makes_one in (("now here", True), ("file", False)):
        with pytest.raises(CommandError, match="neither a store nor a mount point") as refusal:
            find(str(tmp_path / name), table)
        assert (f"mountctl init '{tmp_path}/{name}'" in str(refusal.value)) == makes_one


@pytest.mark.parametrize(
    "line",
    [
        "grep SWAPPED STORE",
        "cat SWAPPED STORE",
        "tail SWAPPED STORE",
        "put SWAPPED STORE",
        "sql SWAPPED STORE",
        "wait SWAPPED STORE",
        "consume SWAPPED STORE -g group",
        "copy SWAPPED STORE STORE",
        "backup SWAPPED STORE",
        "export SWAPPED STORE",
        "topics create SWAPPED STORE",
    ],
)
def test_swapped_arguments_of_a_verb_are_answered_with_their_order(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    MessageStore.open("STORE", create=True).close()
    refused = mountctl(*line.split())
    assert refused.returncode == os.EX_NOINPUT
    verb = line[: line.index(" SWAPPED")]
    said = f"'SWAPPED' is neither a store nor a mount point: 'STORE' is one, and the order is `mountctl {verb} PLACE "
    assert refused.stderr.startswith(f"mountctl: {said}")
    in_order = mountctl(*line.replace("STORE", "other").split())
    is_reader = verb.split()[-1] in ("grep", "cat", "tail", "sql", "wait", "consume", "export")
    assert ("`mountctl init SWAPPED` makes a store there" in in_order.stderr) is not is_reader


@pytest.mark.parametrize("way", ["unmounted", "mounted"])
def test_a_path_below_a_place_names_place_and_topic(site: Site, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(site.store, create=True) as store:
        for number in range(6):
            store.put(Message("orders", b'{"n": %d}' % number, [f"K-{number}"]), number % 2)
        store.put(Message("bills", b"bill"), 0)
    place = site.store if way == "unmounted" else site.mounted().mountpoint
    first = '{"n": 0}\n{"n": 2}\n{"n": 4}\n'
    for path in (place / "orders/0", place / "orders/0.log", f"{place}/orders/0/"):
        assert succeed("cat", path) == first
    assert succeed("cat", place / "orders/0", place / "bills") == f"{first}bill\n"
    assert succeed("cat", place / "orders/0", "bills") == f"{first}bill\n"
    assert succeed("cat", place / "orders/0/1", "--format", "%o %b") == '1 {"n": 2}\n'
    assert succeed("tail", place / "orders/0", "-n", "1") == '{"n": 4}\n'
    assert succeed("grep", place / "orders", "[24]") == '{"n": 2}\n{"n": 4}\n'
    assert succeed("grep", place / "orders/1", "-c", "") == "3\n"
    assert succeed("hist", place / "bills", "--by", "topic", "--csv").splitlines()[1].startswith("bills,1,")
    assert "3 of 3 messages looked at" in succeed("fields", place / "orders/1")
    assert succeed("wait", place / "orders/0/2") == "orders/0/2\n"
    assert succeed("consume", place / "orders/0", "-g", "g", "--", "cat") == ""
    assert succeed("consume", place / "orders/0", "-g", "other", "-n", "1") == '{"n": 0}\n'
    if way == "mounted":
        assert succeed("cat", place / "orders/keys/K-3", "--format", "%q %o") == "1 1\n"
        monkeypatch.chdir(place)
        assert succeed("cat", "orders/0") == first
        monkeypatch.undo()
    assert succeed("copy", place / "bills", place, "paid") == "1 message copied: paid (1)\n"
    swapped = mountctl("grep", "[24]", place / "orders/0")
    assert f"'{place}/orders/0' is one, and the order is `mountctl grep PLACE PATTERN" in swapped.stderr
    for verb in (["cat"], ["tail"], ["fields"], ["wait"], ["consume", "-g", "g"]):
        missing = mountctl(*verb, place)
        assert (missing.returncode, "missing argument 'TOPIC[/QUEUE" in missing.stderr) == (2, True)
    wrong = mountctl("cat", place / "@store/status.json")
    assert (wrong.returncode, "'@store/status.json' is not a message path" in wrong.stderr) == (64, True)


def test_a_mount_counts_when_its_user_is_ours_root_or_the_stores_owner(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path, 2000, -1)
    line = "60 22 0:60 / /mnt/theirs rw - fuse.fsstore {} rw,user_id={},group_id=0\n"
    for user, us, trusted in ((0, 1000, True), (1000, 1000, True), (2000, 1000, True), (3000, 0, False)):
        monkeypatch.setattr(os, "geteuid", lambda us=us: us)
        table.write_text(TABLE + line.format(tmp_path, user))
        assert mounts(table)[-1].is_trusted == trusted
        assert (mount_of(tmp_path, table) is not None) == trusted
        assert (find(str(tmp_path), table).mount is not None) == trusted
    with pytest.raises(CommandError, match="mounted by user 3000, who is neither you nor root nor the owner of"):
        find("/mnt/theirs/orders", table)


def test_a_mount_that_names_no_user_is_nobodys(table: Path) -> None:
    table.write_text(TABLE + "60 22 0:60 / /mnt/odd rw - fuse.fsstore /srv/odd\n")
    assert not mounts(table)[-1].is_trusted
