"""Host: an IP address and a port, as records hold them (docs/format.md, 2).

address 4 or 16 bytes, network order | port i32      8 bytes for IPv4, 20 for IPv6
"""

from dataclasses import dataclass
from ipaddress import ip_address


@dataclass(frozen=True, slots=True)
class Host:
    """One end of a connection: `address` in network order, 4 bytes (IPv4) or 16 (IPv6). ValueError for other
    lengths."""

    address: bytes
    port: int

    def __post_init__(self) -> None:
        if len(self.address) not in (4, 16):
            raise ValueError(f"an address has 4 or 16 bytes, not {len(self.address)}")
        if not 0 <= self.port < 1 << 31:
            raise ValueError(f"no such port: {self.port}")

    @classmethod
    def parse(cls, text: str) -> "Host":
        """The host that `str` printed: "10.0.0.5:10911" or "[2001:db8::1]:10911". ValueError."""
        address, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError(f"not an address with a port: {text!r}")
        return cls(ip_address(address.removeprefix("[").removesuffix("]")).packed, int(port))

    @classmethod
    def decode(cls, encoded: bytes) -> "Host":
        """The host in the 8 or 20 bytes that a record holds."""
        return cls(encoded[:-4], int.from_bytes(encoded[-4:], "big") & 0x7FFFFFFF)

    def encode(self) -> bytes:
        """The 8 or 20 bytes that a record holds."""
        return self.address + self.port.to_bytes(4, "big")

    @property
    def is_ipv6(self) -> bool:
        """Whether the address has 16 bytes."""
        return len(self.address) == 16

    def __str__(self) -> str:
        text = ip_address(self.address).compressed
        return f"[{text}]:{self.port}" if self.is_ipv6 else f"{text}:{self.port}"
