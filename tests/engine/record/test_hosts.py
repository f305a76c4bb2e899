"""Hosts: text and bytes."""

import pytest
from hypothesis import given

from engine.record.hosts import Host
from tests.engine.records import hosts


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
