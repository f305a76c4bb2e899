"""The encoder reads a caller's data once, even if others change it meanwhile, and reports errors."""

from __future__ import annotations

import struct
import threading
from typing import Any, cast

import pytest
from msgspec.structs import replace

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.record.log_framing import record_problem
from engine.record.message import Message
from engine.record.record import RecordEncoder
from tests.engine.records import MAX_BODY_BYTES, STORE_HOST, encoder

LARGE = RecordEncoder(STORE_HOST, 1 << 22)


def test_fields_come_in_the_order_that_the_encoder_takes_them_in() -> None:
    names = "topic body keys tags properties flag sys_flag born_time_ms born_host store_host reconsume_times"
    assert Message.__struct_fields__ == (*names.split(), "prepared_transaction_offset")


@pytest.mark.parametrize("size", [100, 1 << 16, 1 << 20])
def test_a_body_that_others_change_is_stored_as_one_of_its_states(size: int) -> None:
    body, stop = bytearray(size), threading.Event()

    def change() -> None:
        while not stop.is_set():
            for value in range(256):
                body[:] = bytes([value]) * size

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            record = LARGE.encode(Message("T", body), 0, 0)
            record.place(0, 0, 0)
            assert record_problem(record.buffer, 0) is None
    finally:
        stop.set()
        thread.join()


def test_a_body_that_others_want_to_resize_is_read_to_its_end_first() -> None:
    body = bytearray(b"x" * 1000)

    class Resizing:
        def encode(self) -> bytes:
            with pytest.raises(BufferError):
                body.extend(bytes(1 << 20))
            with pytest.raises(BufferError):
                body.clear()
            return STORE_HOST.encode()

    record = encoder.encode(Message("T", body, born_host=cast(Any, Resizing())), 0, 0)
    record.place(0, 0, 0)
    assert record_problem(record.buffer, 0) is None
    assert bytes(record.buffer).count(b"x") == 1000


class Liar(bytes):
    """Says that it is shorter, or longer, than it is."""

    def __new__(cls, length: int) -> Liar:
        made = super().__new__(cls, b"y" * 500)
        made.length = length
        return made

    length: int

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("length", [0, 5, 1 << 40])
def test_a_body_has_the_bytes_that_it_shows(length: int) -> None:
    record = encoder.encode(Message("T", Liar(length)), 0, 0)
    record.place(0, 0, 0)
    assert record_problem(record.buffer, 0) is None
    assert bytes(record.buffer).count(b"y") == 500


def test_keys_that_go_while_they_are_looked_at_harm_nobody() -> None:
    keys = ["k" * 20] * 100

    class Emptying(str):
        __slots__ = ()

    class Properties(dict[str, str]):
        def items(self) -> Any:
            keys.clear()
            return super().items()

    record = encoder.encode(Message("T", b"", keys, Emptying("tag"), Properties({"a": "b"})), 0, 0)
    record.place(0, 0, 0)
    assert record_problem(record.buffer, 0) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": None},
        {"body": None},
        {"body": "text"},
        {"keys": [None]},
        {"keys": [b"k"]},
        {"keys": 5},
        {"tags": None},
        {"tags": b"t"},
        {"properties": {"a": None}},
        {"properties": {None: "a"}},
        {"properties": {"UNIQ_KEY": 5}},
        {"born_host": "127.0.0.1:1"},
    ],
    ids=str,
)
def test_what_is_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    message = replace(Message("T", b"body", ["k"], "t", {"a": "b"}), **changes)
    with pytest.raises((TypeError, AttributeError, IllegalMessageError)):
        encoder.encode(message, 0, 0)
    with pytest.raises((TypeError, AttributeError, IllegalMessageError)):
        encoder.encode_batch([Message("T", b""), message], 0)


@pytest.mark.parametrize("encoded", [b"", b"\0" * 7, b"\0" * 9, b"\0" * 21, b"\0" * 1000])
def test_a_host_of_another_length_is_refused(encoded: bytes) -> None:
    class Odd:
        def encode(self) -> bytes:
            return encoded

    for field in ("born_host", "store_host"):
        with pytest.raises(IllegalMessageError, match="host"):
            encoder.encode(replace(Message("T", b""), **{field: Odd()}), 0, 0)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("flag", "i"),
        ("sys_flag", "i"),
        ("born_time_ms", "q"),
        ("reconsume_times", "i"),
        ("prepared_transaction_offset", "q"),
    ],
)
def test_a_number_that_does_not_fit_its_field_is_refused_in_the_words_of_struct(field: str, code: str) -> None:
    least = -(1 << (31 if code == "i" else 63))
    for fits in (least, -1 - least):
        encoder.encode(replace(Message("T", b""), **{field: fits}), 0, 0)
    for number in (least - 1, -least, 1 << 70, 1.5, "1"):
        with pytest.raises(struct.error) as said:
            struct.pack(f">{code}", number)
        with pytest.raises(IllegalMessageError) as caught:
            encoder.encode(replace(Message("T", b""), **{field: number}), 0, 0)
        assert caught.value.args == (f"a number does not fit its field: {said.value}",)
    with pytest.raises(IllegalMessageError, match="number"):
        encoder.encode(Message("T", b""), 1 << 31, 0)


def test_of_two_faults_the_one_that_was_named_before_is_named_now() -> None:
    """Keys, separators, NUL, Unicode, the properties' size, the body's size, numbers."""
    faults: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"keys": ["a b"]}, IllegalMessageError, "keys are a list"),
        ({"properties": {"a": "\1"}}, IllegalMessageError, "character 1 or 2"),
        ({"tags": "\0"}, IllegalMessageError, "character 0"),
        ({"tags": "\ud800"}, IllegalMessageError, "Unicode"),
        ({"tags": "x" * 40_000}, MessageTooLargeError, "properties"),
        ({"body": bytes(MAX_BODY_BYTES + 1)}, MessageTooLargeError, "body"),
        ({"flag": 1 << 40}, IllegalMessageError, "number"),
    ]
    for at, (fault, kind, words) in enumerate(faults):
        for other, _, _ in faults[at:]:
            text = {"tags": fault.get("tags", "") + other.get("tags", "")} if "tags" in {*fault, *other} else {}
            with pytest.raises(kind, match=words):
                encoder.encode(replace(Message("T", b""), **{**other, **fault, **text}), 0, 0)


@pytest.mark.parametrize("magic", ["daa320a7", "daa320ab"])
def test_a_magic_is_found_wherever_it_is_in_a_body(magic: str) -> None:
    raw = bytes.fromhex(magic)
    for before in (0, 1, 2, 3, 50, 70_000):
        for body in (b"\xda" * before + raw, raw[:3] * before + raw + b"more", b"." * before + raw):
            if len(body) <= LARGE.max_message_bytes:
                assert LARGE.encode(Message("T", body), 0, 0).names_magic
                assert not LARGE.encode(Message("T", body.replace(raw, b"")), 0, 0).names_magic
    assert not LARGE.encode(Message("T", raw[:3]), 0, 0).names_magic
    assert not LARGE.encode(Message("T", "ڣ ".encode() * 100), 0, 0).names_magic


def test_an_empty_batch_can_be_asked_everything() -> None:
    sample = encoder.encode(Message("T", b""), 0, 0)
    batch, after = encoder.encode_lines(sample, b"\n\n", 0, 9)
    batch.place(5, 0, 0)
    batch.distribute([])
    assert (after, len(batch), bytes(batch), batch.sizes(), batch.last_size) == (2, 0, b"", [], 0)
    assert batch.entries(slice(0, 9), 0) == b""
    for start in (2, 3, 99):
        assert len(encoder.encode_lines(sample, b"\n\n", start, 9)[0]) == 0
    with pytest.raises(IndexError):
        encoder.encode_lines(sample, b"\n\n", -1, 9)


def test_parts_outlive_their_batch() -> None:
    batch = encoder.encode_batch([Message("T", b"%d" % number, [f"k{number}"]) for number in range(50)], 0)
    wanted = bytes(batch)
    parts = batch.cut(300)
    views = [part.buffer for part in parts]
    del batch, parts
    encoder.encode_batch([Message("T", bytes(100))] * 50, 0)
    assert b"".join(views) == wanted
