"""Texts of the verbs, and the texts they parse: sizes, times, targets, options, errors."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import engine
import mountctl.errors
from fsstore import MountError, ParquetOptions
from mountctl.client import MessageRow, whole_lines
from mountctl.errors import DAMAGED, FINDINGS, INCOMPLETE, INTERRUPTED, CommandError, exit_code, exit_codes, one_line
from mountctl.options import MountRequest, parse, parse_mode
from mountctl.output import human_seconds, human_size, plural, print_json_line, print_table, throttled
from mountctl.selection import Target, parse_target


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (16 << 20, "16.0 MiB"),
        (5 << 40, "5.0 TiB"),
        (9 << 60, "9216.0 PiB"),
    ],
)
def test_sizes_are_shown_in_binary_units(size: int, words: str) -> None:
    assert human_size(size) == words


def test_durations_and_counts_are_shown_for_people() -> None:
    assert [human_seconds(s) for s in (0.123, 61, 3725)] == ["0.12 s", "1 min 1 s", "1 h 2 min"]
    assert [plural(n, "message") for n in (0, 1, 1234)] == ["0 messages", "1 message", "1,234 messages"]


def test_a_table_has_aligned_columns() -> None:
    @click.command()
    def shown() -> None:
        print_table(("NAME", "N", "ACCESS"), [("orders", "1", "read and write"), ("x", "1,000", "dead")])

    lines = ["NAME        N  ACCESS", "orders      1  read and write", "x       1,000  dead"]
    assert CliRunner().invoke(shown).output.splitlines() == lines


def test_progress_is_told_once_an_interval_and_at_each_end() -> None:
    told: list[int] = []
    times = iter([0.0, 0.5, 1.1, 1.2, 1.3])
    show = throttled(lambda stage, done, total: told.append(done), 1.0, clock=lambda: next(times))
    for done in (1, 2, 3, 4, 10):
        show("reading", done, 10)
    assert told == [1, 3, 10]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("orders", Target("orders")),
        ("orders/3", Target("orders", 3)),
        ("orders/3/00000000000000000042", Target("orders", 3, 42)),
        ("%RETRY%group/0/", Target("%RETRY%group", 0)),
    ],
)
def test_targets_are_spelled_like_paths(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "/", "orders/x", "orders/0/1/2", "orders/-1"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(CommandError, match="not a message path"):
        parse_target(text)


def test_the_words_after_o_are_sorted_by_whom_they_are_for() -> None:
    words = parse(
        ["ro,allow_other,nosuid", "fileReservedTime=72,append_mode=222", "log_file=/l", "defaults,nofail,x-a=b"]
    )
    assert words.switches == {"read_only", "allow_other"}
    assert words.store == {"fileReservedTime": "72"}
    assert (words.append_mode, words.log_file, words.kernel) == (0o222, Path("/l"), ("nosuid",))


@pytest.mark.parametrize("words", ["readonly", "append_mode=9", "append_mode=7777"])
def test_an_option_that_is_not_known_is_an_error(words: str) -> None:
    with pytest.raises(CommandError):
        parse([words])


def test_modes_are_octal() -> None:
    assert parse_mode("0222") == 0o222


def _subclasses(kind: type[BaseException]) -> list[type[BaseException]]:
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _subclasses(below))]


@pytest.mark.parametrize("kind", _subclasses(engine.StoreError))
def test_every_error_of_the_engine_has_an_exit_code(kind: type[BaseException]) -> None:
    nearest = next(parent for parent in kind.__mro__ if parent in exit_codes())
    assert exit_code(kind.__new__(kind)) == exit_codes()[nearest]
    assert 64 <= exit_code(kind.__new__(kind)) <= 78


def test_other_errors_have_exit_codes_too() -> None:
    assert exit_code(CommandError("no", exit_code=3)) == 3
    assert exit_code(PermissionError(13, "Permission denied")) == os.EX_NOPERM
    assert exit_code(OSError(28, "No space left on device")) == os.EX_IOERR
    assert exit_code(MountError(Path("/mnt"), "refused")) == os.EX_UNAVAILABLE
    assert exit_code(ValueError()) == os.EX_SOFTWARE


def test_every_exit_code_is_in_the_documents_table_and_used() -> None:
    project = Path(mountctl.errors.__file__).parents[1]
    table = (project / "docs/operations.md").read_text().partition("| code | meaning |")[2].partition("\n\n")[0]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    sources = "\n".join(path.read_text() for path in sorted((project / "mountctl").rglob("*.py")))
    used = {getattr(os, name) for name in re.findall(r"\bos\.(EX_\w+)", sources)}
    click_s_own = {0, click.UsageError.exit_code}
    assert documented == used | set(exit_codes().values()) | {FINDINGS, DAMAGED, INCOMPLETE, INTERRUPTED} | click_s_own


def test_errors_are_one_line_with_what_to_do() -> None:
    assert one_line(CommandError("it is busy", "wait")) == "it is busy: wait"
    assert one_line(FileNotFoundError(2, "No such file or directory", "/x")) == "/x: No such file or directory"
    assert one_line(ValueError("two\nlines")) == "two lines"
    assert one_line(KeyError()) == "KeyError"


def test_a_message_is_json_with_numbers_texts_and_properties_apart() -> None:
    attributes = {"keys": "42", "queue_offset": "7", "flag": "0", "property.KEYS": "42", "born_host": "1.2.3.4:5"}
    shown = MessageRow("orders", 0, 7, "größer".encode(), 1_000, 42, attributes).as_json()
    assert shown == {
        "topic": "orders",
        "queue": 0,
        "offset": 7,
        "store_time": 1_000,
        "physical_offset": 42,
        "keys": "42",
        "flag": 0,
        "born_host": "1.2.3.4:5",
        "properties": {"KEYS": "42"},
        "body": "größer",
    }
    binary = MessageRow("orders", 0, 7, b"\xff\x00").as_json()
    assert json.loads(json.dumps(binary))["body_base64"] == "/wA="


@given(st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\x00", b"\n")), max_size=8))
def test_chunks_become_the_same_bytes_in_whole_lines(chunks: list[bytes]) -> None:
    lines = list(whole_lines(chunks))
    joined = b"".join(chunks)
    assert b"".join(lines) == joined + (b"" if joined.endswith(b"\n") or not joined else b"\n")
    assert all(line.endswith(b"\n") for line in lines)


def test_what_is_kept_of_rendered_parquet_can_be_chosen() -> None:
    assert parse(["noatime"]).parquet is None
    assert parse(["noatime,parquet_memory=64M"]).parquet == ParquetOptions(memory_bytes=64 << 20)


@pytest.mark.parametrize("name", ["parquet_disk", "parquet_cache"])
def test_an_option_that_is_gone_is_an_error_that_says_what_to_use(name: str) -> None:
    with pytest.raises(CommandError, match=f"-o {name} is no longer offered") as refused:
        parse([f"ro,{name}=0"])
    assert refused.value.remedy.startswith("leave it out: ")


def test_a_request_of_a_version_with_a_cache_on_disk_is_understood() -> None:
    request = MountRequest(Path("/store"), Path("/mnt"), parquet=ParquetOptions(memory_bytes=1 << 20))
    text = json.loads(request.to_text())
    text["parquet"] |= {"disk_bytes": 1 << 30, "directory": "/var/cache/mq"}
    assert MountRequest.from_text(json.dumps(text).encode()) == request


@pytest.mark.parametrize("size", ["", "M", "-1", "1.5G", "64X", "64MB"])
def test_a_size_that_is_none_is_refused(size: str) -> None:
    with pytest.raises(CommandError, match="invalid size"):
        parse([f"parquet_memory={size}"])


def test_names_of_a_hostile_store_reach_a_terminal_as_escapes() -> None:
    @click.command()
    def shown() -> None:
        print_table(("NAME",), [("a\x1b[2Jb\x9b\n\u202e\udcff",), ("größe 順",)])
        print_json_line({"a\x1b\x9b": "\u202e\U000e0001 größe"})

    lines = CliRunner().invoke(shown).output.splitlines()
    assert lines[1:3] == ["a\\x1b[2Jb\\x9b\\n\\u202e\\udcff", "größe 順"]
    assert lines[3].isprintable()
    assert json.loads(lines[3]) == {"a\x1b\x9b": "\u202e\U000e0001 größe"}
    assert one_line(CommandError("no \x1b[2J")) == "no \\x1b[2J"


def test_lines_stand_above_a_progress_bar() -> None:
    program = """
from mountctl.output import print_json_line, print_line, progress
with progress() as show:
    show("looking", 1, 2)
    print_line("a finding")
    print_json_line({"a": 1})
print_line("the end")
"""
    environment = {**os.environ, "TERM": "xterm"}
    terminal, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs, env=environment) as running:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # EIO: the other side is closed
            while chunk := os.read(terminal, 1 << 16):
                shown += chunk
    os.close(terminal)
    assert (running.returncode, b"looking" in shown) == (0, True)
    for line in (b"a finding", b'{"a": 1}', b"the end"):
        assert re.search(rb"(\x1b\[2K|\n)" + re.escape(line) + b"\r\n", shown), shown
