"""No user takes more than a share of what all users of a mount share."""

from __future__ import annotations

import errno
import json
import threading

import pytest

from fsstore.accounts import REFUSALS, Accounts, Bound, Resource
from fsstore.interface import FilesystemError
from tests.fsstore.conftest import Mount

OWNER, ANN, BOB = 10, 1001, 1002
LIMIT, FLOOR = 800, 20


def accounts_of(kind: Resource = Resource.NAMES) -> Accounts:
    return Accounts(OWNER, {kind: Bound(LIMIT, FLOOR)})


def taken_by(accounts: Accounts, user: int) -> int:
    """How many names a user gets who takes all that is to be had."""
    while accounts.try_take(user, Resource.NAMES):
        pass
    return accounts.held(user, Resource.NAMES)


def test_a_user_gets_an_eighth_of_what_is_free_and_is_refused_by_name() -> None:
    accounts = accounts_of()
    assert taken_by(accounts, ANN) == 100
    with pytest.raises(FilesystemError, match="user 1001 holds 100 names and asks for 1 more: the share is 100 now"):
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
    assert accounts.figures() == {Resource.NAMES: (LIMIT, 3, 2, BOB, 2, 1)}


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
