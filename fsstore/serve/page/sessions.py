"""Sessions of the page: a browser sends a token once, in a form, and gets a cookie for it. The cookie is a random
number, valid instead of the token on this server only. It ends with the server, after LIFETIME_S, by a logout, and as
soon as the token is no longer valid.

The cookie is a random number that stands for the token on this server alone. It ends with the server, after LIFETIME_S,
by a logout, and as soon as the token is none any more.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from fsstore.serve.access import AccessError, Tokens, token_digest
from fsstore.serve.connection import Request

LIFETIME_S = 12 * 3600
MOST_SESSIONS = 1_000
WRONG_TOKENS = 10
"""Wrong tokens that an address may give within a minute."""
_MOST_ADDRESSES = 10_000
_MINUTE_S = 60.0


class Session(NamedTuple):
    """The digest of a session's token, and when it ends."""

    token: bytes
    ends_s: float


class Sessions:
    """The sessions of one server. Thread safety: trio's thread alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, Session] = {}
        self._wrong: Counter[str] = Counter()
        self._minute = 0

    def holder(self, request: Request, tokens: Tokens) -> str | None:
        """The name of the holder of the token for which the request has a cookie; None: it has none that counts."""
        session = self._sessions.get(token_digest(_cookie_of(request)))
        if session is None or self._clock() >= session.ends_s:
            return None
        return tokens.holder_of(session.token)

    def begin(self, token: str, request: Request, tokens: Tokens, address: str, is_encrypted: bool) -> tuple[str, str]:
        """The header with the cookie of a new session. AccessError: the token is not valid, or `address` has tried too
        often."""
        minute = int(self._clock() // _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._wrong.clear()
        if self._wrong[address] >= WRONG_TOKENS or len(self._wrong) > _MOST_ADDRESSES:
            raise AccessError(429, "too many wrong tokens: try again in a minute")
        if tokens.holder(token) is None:
            self._wrong[address] += 1
            raise AccessError(401, "the token is not valid")
        value = secrets.token_urlsafe(32)
        self._sessions[token_digest(value)] = Session(token_digest(token), self._clock() + LIFETIME_S)
        while len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return _cookie(request, value, LIFETIME_S, is_encrypted)

    def end(self, request: Request, is_encrypted: bool) -> tuple[str, str]:
        """The header that takes the cookie away; its session is over."""
        self._sessions.pop(token_digest(_cookie_of(request)), None)
        return _cookie(request, "", 0, is_encrypted)


def _cookie(request: Request, value: str, seconds: int, is_encrypted: bool) -> tuple[str, str]:
    secure = "; Secure" if is_encrypted else ""
    text = f"{_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}"
    return "Set-Cookie", text


def _cookie_of(request: Request) -> str:
    """The value of our cookie; empty without one."""
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(_name(request))
    except CookieError:
        return ""
    return "" if found is None else found.value


def _name(request: Request) -> str:
    """Servers at several ports of one host see each other's cookies, so each port has a name of its own."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"fsstore-{port}" if port.isascii() and port.isdecimal() else "fsstore"
