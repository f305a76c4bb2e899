"""Properties: one string, two spellings, no escapes."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import IllegalMessageError, MessageTooLargeError
from engine.record.kernel.encode import MAX_PROPERTIES_BYTES, encode_properties
from engine.record.properties import (
    KEYS,
    decode_properties,
    find_property,
    split_keys,
)
from tests.engine.records import keys, names, texts


@given(st.lists(keys, max_size=3), texts, st.dictionaries(names, texts))
def test_what_was_encoded_is_decoded_but_for_empty_values(
    keys: list[str], tags: str, properties: dict[str, str]
) -> None:
    wanted = {"KEYS": " ".join(keys), "TAGS": tags, **properties}
    raw = encode_properties(keys, tags, properties)
    assert decode_properties(raw) == {name: value for name, value in wanted.items() if value}
    assert decode_properties(raw + b"\x02") == decode_properties(raw)  # as older and newer versions end it


@pytest.mark.parametrize("filling", ["a", "\u00e9", "\x00", "\x03", "\x7f", "\u0101"])
def test_names_and_values_of_every_length_end_where_they_end(filling: str) -> None:
    for length in (*range(1, 90), 500):
        name, value = filling * length, filling * (90 - length % 89)
        raw = f"{name}\x01{value}\x02KEYS\x01{value}\x02{value}\x01{name}".encode()
        assert decode_properties(raw) == {name: value, "KEYS": value, value: name}
        assert find_property(raw, name.encode()) == decode_properties(raw)[name].encode()
        assert find_property(raw, KEYS) == value.encode()


def test_keys_and_tags_come_first_then_the_mapping_in_its_order() -> None:
    raw = encode_properties(["a", "b"], "t", {"z": "1", "UNIQ_KEY": "u", "empty": ""})
    assert raw == b"KEYS\x01a b\x02TAGS\x01t\x02z\x011\x02UNIQ_KEY\x01u\x02empty\x01"


def test_a_property_that_is_given_replaces_keys_and_tags() -> None:
    assert encode_properties(["a"], "t", {"TAGS": "x", "KEYS": "k"}) == b"TAGS\x01x\x02KEYS\x01k"


def test_no_properties_are_no_bytes() -> None:
    assert encode_properties((), "", {}) == b""
    assert decode_properties(b"") == {}


@pytest.mark.parametrize(
    ("keys", "tags", "properties"),
    [
        (["a b"], "", {}),
        (["a", ""], "", {}),
        ("abc", "", {}),
        ("a", "", {}),
        ([" "], "t", {}),
        ([""], "t", {}),
        (["\ud800"], "t", {}),
        (["a\x01b"], "t", {}),
        (["a\x02b"], "", {}),
        (["a\0"], "", {}),
        (["a\0"], "t", {}),
        (["a", "\0b"], "", {}),
        ([], "a\0", {}),
        ([], "", {"a\0": "v"}),
        ([], "", {"a": "v\0"}),
        ([], "", {"KEYS": "v\0"}),
        ([], "a\x01b", {}),
        ([], "", {"": "v"}),
        ([], "", {"a\x01": "v"}),
        ([], "", {"a": "v\x02w"}),
        ([], "", {"a": "\ud800"}),
    ],
)
def test_what_would_read_back_as_something_else_is_refused(
    keys: Sequence[str], tags: str, properties: Mapping[str, str]
) -> None:
    with pytest.raises(IllegalMessageError):
        encode_properties(keys, tags, properties)


def test_properties_may_have_32767_bytes_and_not_one_more() -> None:
    fits = "é" * ((MAX_PROPERTIES_BYTES - 2) // 2)
    assert len(encode_properties((), "", {"n": fits + "x"})) == MAX_PROPERTIES_BYTES
    with pytest.raises(MessageTooLargeError) as caught:
        encode_properties((), "", {"n": fits + "xy"})
    assert (caught.value.what, caught.value.size_bytes) == ("properties", MAX_PROPERTIES_BYTES + 1)
    rest = MAX_PROPERTIES_BYTES - len("KEYS?") - len("?TAGS?t")
    assert len(encode_properties(["k" * rest], "t", {})) == MAX_PROPERTIES_BYTES
    with pytest.raises(MessageTooLargeError):
        encode_properties(["k" * (rest + 1)], "t", {})


@pytest.mark.parametrize("key", ["k", "é", "\xa0", "\u3000x", "\t", "日本", "😀", "\x7f"])
def test_one_key_is_written_as_it_is_whatever_is_printable(key: str) -> None:
    assert encode_properties((key,), "t", {}) == f"KEYS\x01{key}\x02TAGS\x01t".encode()
    assert encode_properties((key,), "", {}) == f"KEYS\x01{key}".encode()


@given(st.binary(max_size=60) | st.lists(st.sampled_from([b"KEYS", b"\x01", b"\x02", b"a", b"XKEYS"])).map(b"".join))
def test_find_property_agrees_with_the_dictionary_whatever_the_bytes(raw: bytes) -> None:
    found = find_property(memoryview(raw), KEYS)
    assert (found.decode(errors="replace") if found else None) == decode_properties(raw).get("KEYS")


def test_the_last_of_equal_names_wins_and_a_value_may_hold_the_name_mark() -> None:
    raw = b"KEYS\x01one\x02KEYS\x01t\x01wo\x02KEYS\x01"
    assert decode_properties(raw) == {"KEYS": "t\x01wo"}
    assert find_property(raw, KEYS) == b"t\x01wo"


def test_keys_are_split_at_single_spaces_and_keep_their_case() -> None:
    assert split_keys(" a  B\tc ") == ["a", "B\tc"]
