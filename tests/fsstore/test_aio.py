"""The follower for event loops gives each message once, leaves the loop free, and ends with the store or its task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trio

from engine import Message, MessageStore, TopicNotFoundError
from fsstore.aio import follow
from tests.fsstore.conftest import open_small

DEADLINE_SECONDS = 30

Task = Callable[[], Coroutine[Any, Any, None]]


def run_asyncio(task: Task) -> None:
    asyncio.run(asyncio.wait_for(task(), DEADLINE_SECONDS))


def run_trio(task: Task) -> None:
    async def limited() -> None:
        with trio.fail_after(DEADLINE_SECONDS):
            await task()

    trio.run(limited)


loops = pytest.mark.parametrize("run", [run_asyncio, run_trio])


@loops
def test_messages_come_as_they_are_published(tmp_path: Path, run: Callable[[Task], None]) -> None:
    async def task() -> None:
        with open_small(tmp_path / "store") as store:
            store.put(Message("orders", b"0"))
            news, got = follow(store, "orders", start=0), []
            async for message in news:
                got.append((bytes(message.body), message.topic, message.queue, message.queue_offset))
                if len(got) == 5:
                    break
                store.put(Message("orders", b"%d" % len(got)), queue=0)
            await news.aclose()
            assert [body for body, *_ in got] == [b"0", b"1", b"2", b"3", b"4"]
            assert {topic for _, topic, _, _ in got} == {"orders"}

    run(task)


@loops
def test_it_ends_when_the_store_is_closed(tmp_path: Path, run: Callable[[Task], None]) -> None:
    async def task() -> None:
        store = open_small(tmp_path / "store")
        store.put(Message("orders", b"0"))
        async for message in follow(store, "orders", start=0):
            assert bytes(message.body) == b"0"
            store.close()

    run(task)


@loops
def test_an_unknown_topic_is_an_error(tmp_path: Path, run: Callable[[Task], None]) -> None:
    async def task() -> None:
        with open_small(tmp_path / "store") as store, pytest.raises(TopicNotFoundError):
            async for _ in follow(store, "orders"):
                pass

    run(task)


def waits(store: MessageStore) -> Coroutine[Any, Any, None]:
    async def forever() -> None:
        async for _ in follow(store, "orders"):
            pass

    return forever()


def test_a_cancelled_follower_of_asyncio_ends_soon_and_many_leave_the_loop_free(tmp_path: Path) -> None:
    async def task() -> None:
        with open_small(tmp_path / "store") as store:
            store.put(Message("orders", b"0"))
            followers = [asyncio.ensure_future(waits(store)) for _ in range(50)]
            for _ in range(20):
                await asyncio.sleep(0.01)
            began = time.monotonic()
            for one in followers:
                one.cancel()
            ended = await asyncio.gather(*followers, return_exceptions=True)
            assert {type(one) for one in ended} == {asyncio.CancelledError}
            assert time.monotonic() - began < 10

    run_asyncio(task)


def test_a_cancelled_follower_of_trio_ends_soon(tmp_path: Path) -> None:
    async def task() -> None:
        with open_small(tmp_path / "store") as store:
            store.put(Message("orders", b"0"))
            with trio.move_on_after(0.05) as scope:
                await waits(store)
            assert scope.cancelled_caught

    run_trio(task)
