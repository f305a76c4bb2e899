"""No user takes more than a share of what all users of a mount share."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest

from engine import Message, MessageStore
from fsstore.accounts import REFUSALS, ROOT, Accounts, Bound, Resource, ResourceFigures
from fsstore.interface import AT_END, FilesystemError
from fsstore.tree.memory_budget import Holding, MemoryBudget, Purpose
from tests.fsstore.conftest import OPTIONS, Mount, refused_with

OWNER, ANN, BOB = 10, 1001, 1002
LIMIT, FLOOR = 800, 20


def accounts_of(kind: Resource = Resource.NAMES) -> Accounts:
    return Accounts(OWNER, {kind: Bound(LIMIT, FLOOR)})


def taken_by(accounts: Accounts, user: int) -> int:
    """How many names a user gets who takes all that is to be had."""
    for _ in range(LIMIT):
        if not accounts.try_take(user, Resource.NAMES):
            break
    return accounts.held(user, Resource.NAMES)


def test_a_user_gets_an_eighth_of_what_is_free_and_is_refused_by_name() -> None:
    accounts = accounts_of()
    assert taken_by(accounts, ANN) == 100
    with pytest.raises(
        FilesystemError, match="names of user 1001: 100 held, 1 more requested, but the share is 100 now"
    ):
        accounts.take(ANN, Resource.NAMES)
    assert accounts.held(ANN, Resource.NAMES) == 100
    accounts.give(ANN, Resource.NAMES)
    accounts.take(ANN, Resource.NAMES)


@pytest.mark.parametrize("kind", list(Resource))
def test_each_resource_has_its_errno(kind: Resource) -> None:
    accounts = accounts_of(kind)
    with pytest.raises(FilesystemError) as refused:
        accounts.take(ANN, kind, LIMIT)
    assert refused.value.errno == REFUSALS[kind]


def test_many_users_make_shares_smaller_and_take_all_but_the_reserve_at_most() -> None:
    accounts = accounts_of()
    shares = [taken_by(accounts, user) for user in range(100, 400)]
    assert shares[:3] == [100, 87, 76]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == LIMIT - LIMIT // 8
    assert FLOOR in shares
    assert taken_by(accounts, OWNER) == LIMIT // 8


def test_a_share_grows_again_when_others_give_back() -> None:
    accounts = accounts_of()
    accounts.take(OWNER, Resource.NAMES, LIMIT - 100)
    assert taken_by(accounts, ANN) == 0
    accounts.give(OWNER, Resource.NAMES, LIMIT - 100)
    assert taken_by(accounts, ANN) == 100


@pytest.mark.parametrize("user", [0, OWNER])
def test_root_and_the_owner_are_bound_by_the_pool_alone(user: int) -> None:
    accounts = accounts_of()
    accounts.take(ANN, Resource.NAMES, 100)
    assert taken_by(accounts, user) == LIMIT - 100
    with pytest.raises(FilesystemError):
        accounts.take(user, Resource.NAMES)


def test_what_was_held_before_this_server_began_is_counted_and_not_refused() -> None:
    accounts = accounts_of()
    accounts.inherit(ANN, Resource.NAMES, 200)
    assert not accounts.try_take(ANN, Resource.NAMES)
    accounts.give(ANN, Resource.NAMES, 101)
    assert accounts.try_take(ANN, Resource.NAMES)


def test_users_who_hold_nothing_are_forgotten() -> None:
    accounts = accounts_of()
    for user in range(1000):
        accounts.take(user, Resource.NAMES)
        accounts.give(user, Resource.NAMES)
    accounts.take(BOB, Resource.NAMES, 2)
    accounts.take(ANN, Resource.NAMES)
    with pytest.raises(FilesystemError):
        accounts.take(ANN, Resource.NAMES, LIMIT)
    assert accounts.figures() == {Resource.NAMES: ResourceFigures(LIMIT, 3, 2, 2, 1, largest_user=BOB)}


def test_threads_lose_no_count() -> None:
    accounts = Accounts(OWNER, {Resource.NAMES: Bound(1 << 20, FLOOR)})

    def use() -> None:
        for _ in range(2000):
            accounts.take(ANN, Resource.NAMES, 3)
            accounts.give(ANN, Resource.NAMES, 2)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accounts.held(ANN, Resource.NAMES) == 8 * 2000


def test_status_and_metrics_say_what_is_held_and_by_whom(mount: Mount) -> None:
    accounts = mount.fs.accounts
    accounts.take(ANN, Resource.STAGED_FILES, 3)
    with pytest.raises(FilesystemError) as refused:
        accounts.take(ANN, Resource.STAGED_FILES, 1 << 20)
    assert refused.value.errno == errno.EDQUOT
    staged = json.loads(mount.cat("@store/status.json"))["accounts"]["staged_files"]
    assert staged == {"limit": 65_536, "used": 3, "users": 1, "largest_user": ANN, "largest": 3, "refused": 1}
    metrics = mount.cat("@store/metrics").decode()
    for line in (
        'fsstore_account_used{resource="staged_files"} 3',
        'fsstore_account_largest{resource="staged_files"} 3',
        'fsstore_account_limit{resource="staged_files"} 65536',
        'fsstore_account_refused_total{resource="staged_files"} 1',
        'fsstore_account_users{resource="staged_files"} 1',
    ):
        assert f"\n{line}\n" in metrics


# names


def seen_by_kernel(mount: Mount, user: int, path: str) -> int:
    """A user looks a name up: its number."""
    mount.fs.accounts.caller = user
    return mount.stat(path).inode


def known(mount: Mount, inode: int) -> bool:
    return inode in mount.fs._inodes.nodes


@pytest.fixture
def few_names(mount: Mount, store: MessageStore) -> Mount:
    """A mount with room for 80 names: 10 of each user."""
    store.put(Message("orders", b"x", ["K"]), 0)
    mount.fs.accounts.set_bound(Resource.NAMES, Bound(80, 2))
    return mount


def test_the_oldest_names_of_a_user_who_made_up_too_many_go(few_names: Mount) -> None:
    mount = few_names
    others = seen_by_kernel(mount, BOB, "orders/append@keys=mine")
    names = [seen_by_kernel(mount, ANN, f"orders/append@keys={number}") for number in range(1000)]
    assert [number for number, inode in enumerate(names) if known(mount, inode)] == list(range(991, 1000))
    assert mount.fs.accounts.held(ANN, Resource.NAMES) == 9
    assert known(mount, others)
    assert mount.fs.accounts.figures()[Resource.NAMES].refused == 0


def test_names_that_are_open_stay_and_those_that_are_forgotten_count_no_more(few_names: Mount) -> None:
    mount = few_names
    opened = seen_by_kernel(mount, ANN, "orders/append")
    handle = mount.fs.open(opened, os.O_WRONLY).handle
    forgotten = seen_by_kernel(mount, ANN, "orders/append")
    mount.fs.forget(forgotten, 1)
    assert mount.fs.accounts.held(ANN, Resource.NAMES) == 1
    for number in range(100):
        seen_by_kernel(mount, ANN, f"orders/append@keys={number}")
    mount.fs.write(handle, AT_END, b"still here\n")
    mount.fs.handles.release(handle)
    assert mount.cat("orders/0/1") == b"still here"


def test_links_and_lists_of_keys_count_too(few_names: Mount) -> None:
    mount = few_names
    listing = seen_by_kernel(mount, ANN, "orders/keys/K@all")
    assert seen_by_kernel(mount, ANN, "orders/keys/K@all") == listing
    seen_by_kernel(mount, ANN, "orders/0/@first")
    assert mount.fs.accounts.held(ANN, Resource.NAMES) == 2
    for number in range(100):
        seen_by_kernel(mount, ANN, f"orders/append@keys={number}")
    assert not known(mount, listing)
    assert refused_with(lambda: mount.fs.getattr(listing)) == errno.ESTALE  # the kernel then looks the name up
    assert known(mount, seen_by_kernel(mount, ANN, "orders/keys/K@all"))


def test_a_name_that_has_no_room_is_refused_and_leaves_nothing(few_names: Mount) -> None:
    mount = few_names
    mount.fs.accounts.take(OPTIONS.uid, Resource.NAMES, 80)
    inodes = len(mount.fs._inodes.nodes)
    with pytest.raises(FilesystemError) as refused:
        seen_by_kernel(mount, ANN, "orders/append")
    assert refused.value.errno == errno.ENOBUFS
    assert len(mount.fs._inodes.nodes) <= inodes + 1  # the topic's


# memory


def begun_by(mount: Mount, user: int, size: int) -> int:
    """A user begins a line of that many bytes: its handle."""
    handle = mount.fs.open(seen_by_kernel(mount, user, "orders/append@frame=file"), os.O_WRONLY).handle
    mount.fs.accounts.caller = ROOT  # later requests count for who opened it
    mount.fs.write(handle, AT_END, b"x" * size)
    return handle


def test_who_begins_too_much_is_refused_and_others_go_on(mount: Mount, store: MessageStore) -> None:
    mount.fs.accounts.set_bound(Resource.HELD_BYTES, Bound(8 << 20, 1 << 10))
    store.put(Message("orders", b"x"), 0)
    handles = [begun_by(mount, ANN, 256 << 10) for _ in range(4)]
    assert refused_with(lambda: begun_by(mount, ANN, 1)) == errno.ENOBUFS
    other = begun_by(mount, BOB, 256 << 10)
    assert mount.fs.memory.used["messages_begun"] == 5 * (256 << 10)
    for handle in (*handles, other):
        mount.fs.flush(handle)
        mount.fs.handles.release(handle)
    assert mount.fs.accounts.held(ANN, Resource.HELD_BYTES) == 0
    assert mount.fs.memory.used["messages_begun"] == 0


def test_what_the_budget_refuses_is_not_in_the_account() -> None:
    accounts = Accounts(OWNER)
    accounts.caller = ANN
    holding = Holding(MemoryBudget(1 << 20, accounts), Purpose.LISTINGS)
    with pytest.raises(FilesystemError, match="the daemon has no memory left for listings"):
        holding.resize(1 << 20)
    assert (holding.size, accounts.held(ANN, Resource.HELD_BYTES)) == (0, 0)


def test_what_another_server_held_is_never_refused() -> None:
    accounts = Accounts(OWNER)
    with accounts.acting_for(ANN):
        holding = Holding(MemoryBudget(1 << 20, accounts), Purpose.MESSAGES_BEGUN)
    assert accounts.caller == OWNER
    holding.inherit(100 << 20)
    assert accounts.held(ANN, Resource.HELD_BYTES) == 100 << 20
    with pytest.raises(FilesystemError, match="held bytes of user 1001"):
        holding.resize(holding.size + 1)
    holding.resize(0)
    assert accounts.held(ANN, Resource.HELD_BYTES) == 0
