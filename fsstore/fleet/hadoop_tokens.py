"""Tokens as Hadoop's clients carry them: in a file, and in a URL.

    file        "HDTS" 0, the number of tokens, tokens with a name each, the number of other secrets
    token       identifier, password, kind, service
    URL         the same, base64; of it the password is read

A server's token is a password with an empty identifier; its service is the server's address, HOST:PORT. Numbers and
lengths are written as org.apache.hadoop.io.WritableUtils writes them.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from fsstore.fleet.unusable import UnusableFileError

TOKEN_FILE = "HADOOP_TOKEN_FILE_LOCATION"
"""The environment variable that names the file of a client."""
_KINDS = ("WEBHDFS delegation", "SWEBHDFS delegation")
"""Kinds of token that Hadoop's clients look for."""
_MAGIC = b"HDTS\0"  # and the version of the format


class HadoopTokensError(UnusableFileError):
    """A file of tokens can't be read; `reason` says why. It has no token."""


def hadoop_token_file(token: str, hosts: Iterable[str], port: int) -> bytes:
    """The file for HADOOP_TOKEN_FILE_LOCATION that has `token` for a server at these addresses."""
    entries = [
        _text(f"{kind}:{host}:{port}") + _vint(0) + _bytes(token.encode()) + _text(kind) + _text(f"{host}:{port}")
        for host in hosts
        for kind in _KINDS
    ]
    return _MAGIC + _vint(len(entries)) + b"".join(entries) + _vint(0)


def own_tokens(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Tokens for servers, by address, in the file that the environment names; none if it names none.
    HadoopTokensError, OSError."""
    named = environment.get(TOKEN_FILE)
    if not named:
        return {}
    path = Path(named)
    try:
        return _tokens_in(io.BytesIO(path.read_bytes()))
    except (ValueError, EOFError) as error:
        raise HadoopTokensError(path, f"this is not a Hadoop token file: {error or 'it ends early'}") from None


def _tokens_in(encoded: io.BytesIO) -> dict[str, str]:
    if encoded.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as one of version 0")
    found = {}
    for _ in range(_read_number(encoded)):
        _, _, password, kind, service = (_read_bytes(encoded) for _ in range(5))
        if kind.decode("utf-8", "replace") in _KINDS:
            found[service.decode("utf-8", "replace")] = password.decode("utf-8", "surrogateescape")
    return found


def token_in_url(text: str) -> str:
    """The token that the parameter `delegation` has. ValueError: it has none."""
    try:
        encoded = io.BytesIO(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        _read_bytes(encoded)  # the identifier
        return _read_bytes(encoded).decode("utf-8", "surrogateescape")
    except (binascii.Error, EOFError) as error:
        raise ValueError(str(error)) from None


def _vint(number: int) -> bytes:
    """A number of 0 or more."""
    if number <= 127:
        return bytes((number,))
    digits = number.to_bytes(-(-number.bit_length() // 8), "big")
    return bytes((256 - 112 - len(digits),)) + digits


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(content: bytes) -> bytes:
    return _vint(len(content)) + content


def _read_bytes(encoded: io.BytesIO) -> bytes:
    return _read_exactly(encoded, _read_number(encoded))


def _read_number(encoded: io.BytesIO) -> int:
    number = _read_exactly(encoded, 1)[0]
    if 136 <= number <= 143:  # so many bytes of a number follow
        return int.from_bytes(_read_exactly(encoded, 144 - number), "big")
    if number > 127:
        raise ValueError("a negative length")
    return number


def _read_exactly(encoded: io.BytesIO, size: int) -> bytes:
    found = encoded.read(size)
    if len(found) < size:
        raise EOFError
    return found
