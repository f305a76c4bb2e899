"""Messages: their ids and hosts, and that a stored one is a view that stays what it is."""

import gc

import pytest
from hypothesis import given
from msgspec.structs import replace

from engine.record.message import Host, Message, message_id
from engine.record.record import decode_record
from tests.engine.records import BASE, hosts, log_of


@given(hosts)
def test_text_and_bytes_lead_back_to_the_host(host: Host) -> None:
    assert Host.parse(str(host)) == host
    assert Host.decode(host.encode()) == host


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("192.168.1.10:54321", "c0a8010a0000d431"),
        ("[fe80::1234:5678:9abc:de02]:10911", "fe80000000000000123456789abcde0200002a9f"),
    ],
)
def test_encoding_is_network_order_and_a_port_of_four_bytes(text: str, encoded: str) -> None:
    assert Host.parse(text).encode().hex() == encoded
    assert str(Host.decode(bytes.fromhex(encoded))) == text


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "host:1", "10.0.0.300:1", "10.0.0.1:99999999999"]
)
def test_parse_refuses_what_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Host.parse(text)


def test_an_address_has_four_or_sixteen_bytes() -> None:
    with pytest.raises(ValueError, match="not 5"):
        Host(b"12345", 1)


@pytest.mark.parametrize(
    ("host", "host_bytes"), [("10.0.0.5:10911", "0A000005"), ("[2001:db8::1]:10911", "20010DB8" + "00" * 11 + "01")]
)
def test_a_message_id_is_made_of_host_and_physical_offset(host: str, host_bytes: str) -> None:
    assert message_id(Host.parse(host).encode(), 1 << 40) == host_bytes + "00002A9F" + "0000010000000000"


def test_a_message_keeps_its_bytes_alive_and_copies_none() -> None:
    log, _ = log_of([Message("T", b"body")])
    message = decode_record(memoryview(log), BASE)
    gc.collect()
    with pytest.raises(BufferError):
        log.clear()
    log[88:92] = b"BODY"
    assert bytes(message.body) == b"BODY"


def test_two_messages_share_no_properties() -> None:
    first, second = Message("T", b""), Message("T", b"")
    assert first.properties is not second.properties
    assert replace(first, tags="t") == Message("T", b"", tags="t")


def test_properties_that_are_empty_read_as_absent_but_stay_as_stored() -> None:
    log, _ = log_of([Message("T", b"", properties={"KEYS": "", "TAGS": "", "color": ""})])
    message = decode_record(memoryview(log), BASE)
    assert (message.keys, message.tags, message.properties, message.find_property(b"color")) == ([], "", {}, "")
    assert bytes(message.raw_properties) == b"KEYS\x01\x02TAGS\x01\x02color\x01"
