"""Framing: however the bytes are split into write requests, the messages are the same."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import IllegalMessageError, MessageStore, MessageTooLargeError, StoreFullError
from fsstore.interface import AT_END
from fsstore.tree.json_messages import parse_json_message
from fsstore.tree.names import PLAIN_APPEND, AppendOptions
from fsstore.tree.publishing import LineFramer
from tests.engine.storetools import bodies
from tests.fsstore.conftest import Mount, disk_of, shared_one_a_file

TEXTS = st.lists(
    st.sampled_from([b"\n", b"a", b"bc\n", b"\n\n", b"\r", b"\x00", b"long line of words"]), max_size=20
).map(b"".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)


def cut(text: bytes, cuts: Sequence[int]) -> list[bytes]:
    """`text` in pieces, none empty."""
    edges = [0, *sorted(min(edge, len(text)) for edge in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges) if start < end]


def fresh(store: MessageStore) -> Mount:
    """A mount with an empty topic, for one example."""
    if store.topics():
        store.delete_topic("orders")
    store.create_topic("orders")
    return Mount(store)


@given(TEXTS, CUTS)
@example(b"one\ntwo\n\nthree", [4])
def test_any_split_into_requests_gives_the_same_messages(shared: MessageStore, text: bytes, cuts: list[int]) -> None:
    mount = fresh(shared)
    mount.publish("orders/0/append", *cut(text, cuts))
    assert bodies(shared, "orders", 0) == [line for line in text.split(b"\n") if line]


@given(TEXTS, CUTS)
def test_a_file_is_one_message_however_it_is_split(shared: MessageStore, text: bytes, cuts: list[int]) -> None:
    mount = fresh(shared)
    mount.publish("orders/0/append@frame=file", *cut(text, cuts))
    assert bodies(shared, "orders", 0) == ([text] if text else [])


@given(TEXTS, CUTS)
def test_each_request_is_a_message_with_frame_write(shared: MessageStore, text: bytes, cuts: list[int]) -> None:
    mount = fresh(shared)
    requests = cut(text, cuts)
    mount.publish("orders/0/append@frame=write", *requests)
    assert bodies(shared, "orders", 0) == requests


@shared_one_a_file
@given(TEXTS, CUTS, st.lists(st.booleans(), max_size=12))
def test_a_request_refused_for_want_of_space_can_be_tried_again(
    shared: MessageStore, text: bytes, cuts: list[int], refusals: list[bool]
) -> None:
    mount = fresh(shared)
    handle = mount.open("orders/0/append", 1).handle
    for request, is_refused in zip(cut(text, cuts), refusals + [False] * 20, strict=False):
        if is_refused:
            disk_of(shared).is_full = True
            try:
                mount.fs.write(handle, AT_END, request)
                continue  # it completed no line: taken
            except StoreFullError:
                disk_of(shared).is_full = False
        disk_of(shared).is_full = False
        mount.fs.write(handle, AT_END, request)
    disk_of(shared).is_full = False
    mount.fs.flush(handle)
    assert bodies(shared, "orders", 0) == [line for line in text.split(b"\n") if line]


@given(TEXTS, CUTS, TEXTS, CUTS, st.randoms(use_true_random=False))
def test_two_handles_never_mix_their_lines(
    shared: MessageStore, left: bytes, left_cuts: list[int], right: bytes, right_cuts: list[int], random: Random
) -> None:
    mount = fresh(shared)
    handles = [mount.open("orders/0/append", 1).handle for _ in range(2)]
    waiting = [cut(left, left_cuts), cut(right, right_cuts)]
    while any(waiting):
        turn = random.randrange(2)
        if waiting[turn]:
            mount.fs.write(handles[turn], AT_END, waiting[turn].pop(0))
    for handle in handles:
        mount.fs.flush(handle)
    lines = [line for text in (left, right) for line in text.split(b"\n") if line]
    assert sorted(bodies(shared, "orders", 0)) == sorted(lines)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=6), CUTS, st.booleans())
def test_json_lines_are_their_bodies_however_they_are_split(
    shared: MessageStore, texts: list[str], cuts: list[int], ascii_only: bool
) -> None:
    mount = fresh(shared)
    text = "".join(json.dumps({"body": body}, ensure_ascii=ascii_only) + "\n" for body in texts).encode()
    mount.publish("orders/0/append@format=json", *cut(text, cuts))
    assert bodies(shared, "orders", 0) == [body.encode() for body in texts]


def test_a_line_without_its_newline_is_kept_up_to_the_limit() -> None:
    framer = LineFramer(10)
    assert framer.lines_with(b"0123456789") == []
    assert framer.text_with(b"0123456789") == b""
    assert framer.rest_bytes_with(b"0123456789") == 10
    framer.keep_rest_of(b"0123456789")
    with pytest.raises(MessageTooLargeError):
        framer.rest_bytes_with(b"x")
    assert framer.lines_with(b"\nnext") == [b"0123456789\n"]
    assert framer.text_with(b"\nnext") == b"0123456789\n"


def test_json_fields_hold_where_they_are_and_options_where_they_are_not() -> None:
    options = AppendOptions(tags="paid", keys=("A",))
    message = parse_json_message("orders", b'{"body": "b", "keys": ["K", "L"], "properties": {"p": "v"}}', options)
    assert (message.body, message.keys, message.tags, message.properties) == (b"b", ["K", "L"], "paid", {"p": "v"})
    message = parse_json_message("orders", b'{"body": "b", "keys": "K", "tags": "new"}', options)
    assert (message.keys, message.tags) == (["K"], "new")
    assert parse_json_message("orders", b'{"body": ""}', options).keys == ["A"]


@given(st.binary(max_size=50))
def test_bytes_that_are_no_text_come_as_base64(body: bytes) -> None:
    text = json.dumps({"body_base64": base64.b64encode(body).decode()})
    assert parse_json_message("orders", text.encode(), PLAIN_APPEND).body == body


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'"body"',
        b"{}",
        b'{"body": 1}',
        b'{"body": null}',
        b'{"body": "\\ud800"}',
        b'{"body": "b", "bodies": 1}',
        b'{"body": "b", "keys": 1}',
        b'{"body": "b", "keys": [1]}',
        b'{"body": "b", "tags": []}',
        b'{"body": "b", "properties": []}',
        b'{"body": "b", "properties": {"p": 1}}',
        b'{"body": "\xff"}',
        b'{"body_base64": 1}',
        b'{"body_base64": "*"}',
        b'{"body_base64": "YQ"}',
        b'{"body_base64": "\xc3\xa9"}',
        b'{"body": "a", "body_base64": "YQ=="}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_message_in_json_is_illegal(text: bytes) -> None:
    with pytest.raises(IllegalMessageError):
        parse_json_message("orders", text, PLAIN_APPEND)


@given(st.binary(max_size=80))
def test_no_bytes_make_the_json_parser_fail_otherwise(text: bytes) -> None:
    with suppress(IllegalMessageError):
        parse_json_message("orders", text, PLAIN_APPEND)
