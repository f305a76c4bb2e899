"""What a field of a record says of a message's keys."""

from __future__ import annotations

import json
from collections.abc import Callable


def keys_in(value: object, text_of: Callable[[object], str] = json.dumps) -> list[str]:
    """A key, or a list of them; none where it is null. `text_of` writes what is no text. ValueError: it can be no
    key."""
    values = value if isinstance(value, list) else [] if value is None else [value]
    if any(one is None or isinstance(one, list | dict) for one in values):
        raise ValueError("neither a text nor a number")
    return [one if isinstance(one, str) else text_of(one) for one in values]
