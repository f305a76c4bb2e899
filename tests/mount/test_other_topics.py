"""Who may publish to one topic, and what of the others that reaches: one line of JSON is all it takes to try."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.mount.harness import Mounted, bodies, mounted, refused_with

NAMED = ["orders", "others,orders", "unknown", "CURRENT", "../others", "others,others", ",".join(["%LMQ%a"] * 4_000)]


def line(body: str, **properties: str) -> bytes:
    return json.dumps({"body": body, "properties": properties}).encode() + b"\n"


def require_two_topics(mount: Mounted, published: list[bytes], entered: list[bytes]) -> None:
    assert {name for name in os.listdir(mount.root) if not name.startswith("@") and "." not in name} == {
        "orders",
        "others",
    }
    assert bodies(mount.root / "orders" / "0") == published
    assert bodies(mount.root / "others" / "0") == [b"own", *entered]


@pytest.mark.parametrize("multi_dispatch", [False, True])
def test_a_line_enters_no_other_topic_unless_the_store_lets_it(tmp_path: Path, multi_dispatch: bool) -> None:
    published: list[bytes] = []
    with mounted(tmp_path, config={"multi_dispatch": multi_dispatch}) as mount:
        for name in ("orders", "others"):
            (mount.root / name).mkdir()
        (mount.root / "others" / "0" / "append").write_bytes(b"own\n")
        fd = os.open(mount.root / "orders" / "0" / "append@format=json", os.O_WRONLY)
        for names in NAMED:
            lines = line("good") + line("bad", INNER_MULTI_DISPATCH=names, INNER_MULTI_QUEUE_OFFSET="0")
            if multi_dispatch:
                assert refused_with(os.write, fd, lines) == errno.EINVAL
            else:
                assert os.write(fd, lines) == len(lines)
                published += [b"good", b"bad"]
        os.write(fd, line("both", INNER_MULTI_DISPATCH="others", INNER_MULTI_QUEUE_OFFSET="0"))
        published.append(b"both")
        entered = [b"both"] if multi_dispatch else []
        os.fsync(fd)
        os.close(fd)
        require_two_topics(mount, published, entered)
        mount.kill()
    with mounted(tmp_path) as mount:
        require_two_topics(mount, published, entered)
