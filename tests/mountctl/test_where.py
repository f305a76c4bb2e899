"""docs/where.md: each numbered sentence, and the same rows from DuckDB over random bodies."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine import Message, MessageStore, StoreConfig
from fsstore.query.expression import WhereError
from fsstore.query.where import Where
from mountctl.hosts import request
from mountctl.selection import Selection
from tests.mountctl.conftest import Site, mountctl, succeed

PAGE = (Path(__file__).resolve().parents[2] / "docs/where.md").read_text()
SENTENCES = {int(number): text for number, text in re.findall(r"^- \*\*(\d+)\*\* (.+)$", PAGE, re.MULTILINE)}

EXAMPLES: dict[int, list[tuple[str, list[str], list[str]]]] = {
    1: [
        ("level = 'error'", ['{"level": "error"}'], ['{"Level": "error"}', '{"x": {"level": "error"}}']),
        ("user.id = 5", ['{"user": {"id": 5}}'], ['{"user.id": 5}', '{"user": [5]}', '{"user": 5}']),
        ("a[0] = 1", ['{"a": [1, 2]}'], ['{"a": [2, 1]}', '{"a": []}', '{"a": {"0": 1}}']),
        ("a[1].b[0] = 1", ['{"a": [0, {"b": [1]}]}'], ['{"a": [{"b": [1]}]}']),
        ('user["first name"] = "A"', ['{"user": {"first name": "A"}}'], ['{"user": {"first": "A"}}']),
        ("größe = 1 and x-y = 2 and body.in = 3", ['{"größe": 1, "x-y": 2, "in": 3}'], ['{"größe": 1, "x-y": 2}']),
        ("größe = 1", ['{"gr\\u00f6\\u00dfe": 1}'], []),
    ],
    2: [
        ("body.key = 'K'", ['{"key": "K"}'], ['{"body": {"key": "K"}}']),
        ("body = 5 or body[0] = 1", ["5", "[1]"], ['"5"', "[[1]]", '{"body": 5}']),
        ("queue = 0 and offset < 1", ["{}"], ["{}", "no JSON"]),
    ],
    4: [("size = 5", ['{"a"}', "größ"[:3] + "x"], ["1234", ""])],
    6: [
        ("a = 'x' and b = \"y\"", ['{"a": "x", "b": "y"}'], []),
        ("a = 'it''s' or a = \"a\"\"b\"", ['{"a": "it\'s"}', '{"a": "a\\"b"}'], ['{"a": "its"}']),
        (r"a = '\n'", [r'{"a": "\\n"}'], [r'{"a": "\n"}']),
        ("a = 'error'", ['{"a": "err\\u006fr"}'], ['{"a": "err\\\\u006fr"}']),
    ],
    7: [
        ("a = 9007199254740993", ['{"a": 9007199254740993}'], ['{"a": 9007199254740992}', '{"a": "9007199254740993"}']),
        ("a > 9223372036854775806", ['{"a": 9223372036854775807}'], ['{"a": 9223372036854775806}']),
        ("a <= -9223372036854775808", ['{"a": -9223372036854775808}'], ['{"a": -9223372036854775807}']),
    ],
    8: [
        ("a = 0.1", ['{"a": 0.1}', '{"a": 1e-1}'], ['{"a": 0.10000001}']),
        ("a = 1", ['{"a": 1.0}', '{"a": 1}', '{"a": 10e-1}'], ['{"a": 1.5}', '{"a": true}', '{"a": "1"}']),
        ("a = 9007199254740992.0", ['{"a": 9007199254740992}', '{"a": 9007199254740993}'], ['{"a": 9007199254740991}']),
        ("a = 18446744073709551616", ['{"a": 18446744073709551616}', '{"a": 18446744073709551617}'], ['{"a": 1}']),
    ],
    9: [
        ("a < 'b'", ['{"a": "B"}', '{"a": "az"}', '{"a": ""}'], ['{"a": "b"}', '{"a": "é"}']),
        ("a > '\uffee'", ['{"a": "😀"}'], ['{"a": "z"}']),
        ("a < true", ['{"a": false}'], ['{"a": true}', '{"a": 0}']),
    ],
    10: [
        ("5 < a and a <> 7 and a != 8", ['{"a": 6}'], ['{"a": 5}', '{"a": 7}', '{"a": 8}']),
        ("a >= b", ['{"a": 2, "b": 2}', '{"a": "b", "b": "a"}'], ['{"a": 1, "b": 2}', '{"a": 1, "b": "0"}']),
        ("a <= 2", ['{"a": 2}', '{"a": 1}'], ['{"a": 3}']),
        ("offset = a", ['{"a": 0}'], ['{"a": 0}']),
    ],
    11: [
        ("a in (1, \"x\")", ['{"a": 1}', '{"a": "x"}'], ['{"a": 2}', '{"a": "1"}', "{}"]),
        ("a not in (1, 2)", ['{"a": 3}'], ['{"a": 1}', '{"a": "x"}', "{}"]),
    ],
    12: [
        ("a like 'ab%'", ['{"a": "abc"}', '{"a": "ab\\n"}'], ['{"a": "xab"}', '{"a": "AB"}', '{"a": 5}']),
        ("a like '%b_d%f'", ['{"a": "abcdef"}', '{"a": "bédf"}'], ['{"a": "bdf"}', '{"a": "abcdefg"}']),
        ("a like '.*'", ['{"a": ".*"}'], ['{"a": "x"}']),
        ("a not like '%b%'", ['{"a": "acd"}'], ['{"a": "abc"}', '{"a": 5}', "{}"]),
    ],
    13: [
        ("a is null", ["{}", '{"a": null}', "no JSON", "[1]", ""], ['{"a": 0}', '{"a": []}']),
        ("a is not null", ['{"a": false}', '{"a": {}}'], ["{}", '{"a": null}', "no JSON"]),
        ("not (a is null)", ['{"a": ""}'], ["{}"]),
    ],
    14: [
        ("a = 5 or a != 5", ['{"a": 5}', '{"a": 6}'], ['{"a": "5"}', '{"a": true}', '{"a": [5]}', '{"a": null}']),
        ("not a > 'x'", ['{"a": "w"}'], ['{"a": 5}', '{"a": "y"}']),
    ],
    15: [
        ("not a = 5", ['{"a": 6}'], ["{}", '{"a": null}', '{"a": 5}', "no JSON"]),
        ("not (a = 5 and b = 5)", ['{"a": 6}', '{"b": 6, "a": 5}'], ['{"a": 5}', '{"a": 5, "b": 5}']),
    ],
    16: [
        ("a = 1 or a = 2 and b = 2", ['{"a": 1}', '{"a": 2, "b": 2}'], ['{"a": 2}']),
        ("(a = 1 or a = 2) and b = 2", ['{"a": 1, "b": 2}'], ['{"a": 1}']),
        ("not a = 1 and b = 2", ['{"a": 2, "b": 2}'], ['{"a": 1, "b": 1}']),
        ("a = 1 OR Not b In (TRUE)", ['{"a": 1}', '{"b": false}'], ['{"b": true}']),
    ],
    17: [
        ("not (a = 1 and b = 1)", ['{"a": 2}', '{"b": 2}'], ['{"a": 1}']),
        ("a = 1 or b = 1", ['{"a": 1}', '{"b": 1}'], ["{}"]),
    ],
    18: [
        ("a = 1", ['{"a": 1}', ' {"a": 1}\n', '{\n"a": 1\n}'], ['{"a": 1,}', '{"a": 1} x', '{"a": 1}{"a": 1}']),
        ("a = 1", [], ['{"a": 1, "b": NaN}', '{"a": 01}', "{'a': 1}", '\ufeff{"a": 1}', '{"a": 1, "b": "\\ud800"}']),
        ("a = 1", ['{"a": 1, "b": ",] NaN"}'], ['{"a": 1, "b": "\udcff"}', '{"a": 1', '{"a": 1, "b": [1}']),
        ("a is null", ["{", '{"x": 1\n', '{"b": 1}', ',"a": 1}'], ['{"a": 1}']),
    ],
    19: [("a is null", ['{"a": 1e400}', '{"a": -1e400}'], ['{"a": 1e300}'])],
    20: [("a = 2", ['{"a": 1, "a": 2}'], ['{"a": 2, "a": 1}'])],
    21: [("b is not null", ['{"b": ' + "[" * 500 + "]" * 500 + "}"], ['{"b": ' + "[" * 9999 + "]" * 9999 + "}"])],
}  # fmt: skip
"""By sentence: an expression, bodies of messages for which it is true, and others; queue offsets begin at 0."""

OTHERWISE_IN_SQL = (20, 21)


@contextmanager
def store_of(path: Path, messages: list[Message]) -> Iterator[MessageStore]:
    with MessageStore.open(path, create=True) as store:
        for message in messages:
            store.put(message, 0)
        yield store


def encoded(body: str) -> bytes:
    return body.encode(errors="surrogateescape")


def true_for(store: MessageStore, expression: str, topic: str = "t", queue: int = 0) -> list[int]:
    """Queue offsets of the messages for which an expression is true."""
    found = Where(expression).matching(store, topic, queue, 0, 1 << 40, lambda offset: pytest.fail(f"{offset} damaged"))
    return [offset for offsets, _ in found for offset in offsets.tolist()]


def test_each_sentence_of_the_page_has_its_test() -> None:
    modules = (
        "test_where.py",
        "test_hist.py",
        "test_grep.py",
        "test_dlq.py",
        "test_incomplete.py",
        "test_sql.py",
        "test_decode.py",
    )
    source = "".join(Path(__file__).with_name(module).read_text() for module in modules)
    heads = re.findall(r"^def test_((?:\d+_)+)", source, re.MULTILINE)
    named = {int(number) for head in heads for number in head.strip("_").split("_")}
    assert sorted(SENTENCES) == sorted(named | EXAMPLES.keys()) == list(range(1, len(SENTENCES) + 1))


@pytest.mark.parametrize("number", EXAMPLES)
@pytest.mark.parametrize("as_block", [False, True], ids=["bodies", "columns"])
def test_the_examples_of_a_sentence(tmp_path: Path, number: int, as_block: bool) -> None:
    """By bodies alone, and behind a test of columns, which leaves each message open."""
    for at, (expression, taken, others) in enumerate(EXAMPLES[number]):
        with store_of(tmp_path / str(at), [Message("t", encoded(body)) for body in [*taken, *others]]) as store:
            wanted = f"(time > 0) and ({expression})" if as_block else expression
            assert true_for(store, wanted) == list(range(len(taken))), (SENTENCES[number], expression)


OWN = [
    Message("t", b'{"key": "in the body"}', ["K-1", "K-2"], "paid", {"P": "v", "trace-id": "7"}),
    Message("t", b"x" * 50, ["K-3"]),
    Message("t", b"", [], "new", {"P": "w"}),
]


def test_2_5_values_of_the_message_itself(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", OWN) as store:
        for expression, found in {
            "key = 'K-2'": [0],
            "key like 'K-_'": [0, 1],
            "key != 'K-1'": [1],
            "not key > 'K-2'": [0],
            "key in ('K-3', 'K-1')": [0, 1],
            "key is null": [2],
            "key = body.key": [],
            "key = 5": [],
            "not key = 5": [],
            "tag = 'paid'": [0],
            "tag != 'paid'": [2],
            "tag is null": [1],
            "property.P < 'w'": [0],
            "property.trace-id = '7'": [0],
            "property.P is null": [1],
            "tag = 'new' or body.key is not null": [0, 2],
            "tag = 'paid' and body.key = 'in the body'": [0],
            "not (tag = 'paid' and body.key = 'in the body')": [2],
            "queue = 0 and offset >= 1": [1, 2],
            "queue > 0": [],
        }.items():
            assert true_for(store, expression) == found, expression


def test_3_a_time_is_written_as_for_from(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", OWN) as store:
        at_ms = store.get("t", 0, 0).store_time_ms
        for expression, found in {
            "time >= '-1h' and time < '2999-01-01'": [0, 1, 2],
            "'-1h' > time": [],
            f"time >= {at_ms}": [0, 1, 2],
            f"time < '@{at_ms}'": [],
            "time in ('2026-01-31T09:30', 5.5)": [],
        }.items():
            assert true_for(store, expression) == found, expression


def test_4_the_size_is_of_the_decompressed_body(tmp_path: Path) -> None:
    import zlib

    packed = [Message("t", zlib.compress(b"x" * 1000), sys_flag=0x1 | 0x300), *OWN]
    with store_of(tmp_path / "s", packed) as store:
        assert true_for(store, "size = 1000") == true_for(store, "size = 1000 and time > 0") == [0]
        assert true_for(store, "size < 1") == [3]


@pytest.mark.parametrize(
    ("expression", "position", "reason"),
    [
        ("level = ", 8, "expected a value"),
        ("level", 5, "expected a comparison"),
        ("level == 5", 7, "expected a value"),
        ('level = "x', 8, "quote is not closed"),
        ("a = 1 b", 6, "expected and, or"),
        ("(a = 1", 6, "closing parenthesis"),
        ("a in (1", 7, "closing parenthesis"),
        ("a in 1", 5, "opening parenthesis"),
        ("a is 5", 5, "expected null"),
        ("a like 5", 7, "text in quotes"),
        ("a.", 2, "expected a name"),
        ("a[x] = 1", 2, "an index"),
        ('a["x\\y"] = 1', 2, "no backslash"),
        ("a = null", 4, "is null"),
        ("key.x = 1", 0, "body.key"),
        ("property = 1", 0, "followed by"),
        ("time > 'noon'", 7, "not a time"),
        ("a = 1e999", 4, "too large"),
        ("key = key", 6, "one value"),
        ("a = 1 and", 9, "expected a value"),
        ("", 0, "expected a value"),
        ("a = 1 or " * 300 + "a = 1", 2000, "longer"),
    ],
)  # fmt: skip
def test_22_a_wrong_expression_is_refused_at_its_place(expression: str, position: int, reason: str) -> None:
    with pytest.raises(WhereError, match=re.escape(reason)) as refused:
        Where(expression)
    assert refused.value.position == position


@pytest.mark.parametrize(
    "words",
    [["cat", "t"], ["tail", "t"], ["grep", "x", "t"], ["consume", "t", "-g", "g"], ["hist", "t"], ["sql", "from t"]],
)
def test_22_a_verb_refuses_a_wrong_expression_before_it_reads(tmp_path: Path, words: list[str]) -> None:
    verb, *rest = words
    done = mountctl(verb, tmp_path / "no store", *rest, "--where", "level = ")
    assert done.returncode == os.EX_USAGE
    assert "--where: expected a value, at character 9: level = <HERE>" in done.stderr


def test_52_a_word_that_was_perhaps_meant_as_a_text_is_named(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.put_lines("t", b'{"level": "error"}\n{"level": "x", "error": "x"}\n', queue=0)

    def said(expression: str) -> tuple[str, str]:
        done = mountctl("cat", tmp_path / "store", "t", "--where", expression)
        return done.stdout, done.stderr

    note = "mountctl: --where: error is the name of a field; a text stands in quotes: 'error'\n"
    assert said("level = error and not level = 'y'") == ('{"level": "x", "error": "x"}\n', note)
    assert said("level = body.error") == ('{"level": "x", "error": "x"}\n', "")
    assert said("level = 'error'") == ('{"level": "error"}\n', "")
    assert said("not (7 = level or level != error)")[1] == note


BODIES = [f'{{"n": {number}, "level": "{"error" if number % 7 == 0 else "info"}"}}' for number in range(300)]
FIRST_MS = 1_769_842_800_000
EXPRESSION = 'level = "error" and n > 100'
WANTED = [body for number, body in enumerate(BODIES) if number % 7 == 0 and number > 100]


def test_23_verbs_find_the_same_by_the_same_expression(site: Site) -> None:
    with MessageStore.open(site.store, create=True) as store:
        for number, body in enumerate(BODIES):
            store.put(Message("t", body.encode(), ["K"], tags="even" if number % 2 == 0 else ""), number % 3)
    where = "--where", EXPRESSION
    for place in (site.store, site.mounted().mountpoint):
        assert sorted(succeed("cat", place, "t", *where).splitlines()) == sorted(WANTED)
        assert succeed("tail", place, "t", "-n", "5", *where).splitlines() == WANTED[-5:]
        assert succeed("tail", place, "t", "--from", "0", *where).splitlines() == WANTED
        assert sorted(succeed("grep", place, '"n": 1', "t", *where).splitlines()) == sorted(
            body for body in WANTED if '"n": 1' in body
        )
        assert succeed("grep", place, "-c", "error", "t", *where) == f"{len(WANTED)}\n"
        assert sorted(succeed("cat", place, "t", "--key", "K", "--tag", "even", *where).splitlines()) == sorted(
            body for body in WANTED if int(body.split(",")[0][6:]) % 2 == 0
        )
        rows = succeed("sql", place, "select body from t", "--json", *where)
        assert sorted(json.loads(row)["body"] for row in rows.splitlines()) == sorted(WANTED)
    succeed("copy", site.mountpoint, "t", site.mountpoint, "copied", *where)
    assert sorted(succeed("cat", site.mountpoint, "copied").splitlines()) == sorted(WANTED)


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_23_an_export_has_the_same_and_goes_on(site: Site, tmp_path: Path, form: str) -> None:
    import pyarrow.dataset as ds

    texts = [
        "tag = 'even' and n > 0",
        "property.A = 'ü' or key = 'K'",
        f"time >= {FIRST_MS + 10} and queue = 1",
        EXPRESSION,
    ]
    now_ms = FIRST_MS

    def fill() -> None:
        nonlocal now_ms
        with MessageStore.open(site.store, StoreConfig(clock=lambda: now_ms), create=True) as store:
            for number, body in enumerate(BODIES):
                now_ms += 1
                tags, properties = "even" if number % 2 == 0 else "", {"A": "ü"} if number % 3 else {}
                store.put(Message("t", body.encode(), ["K"] * (number % 4 == 0), tags, properties), number % 3)

    for _ in range(2):
        fill()
        for number, text in enumerate(texts):
            target = tmp_path / str(number)
            succeed("export", site.store, target, "--where", text, "--format", form, "-q")
            rows = ds.dataset([str(file) for file in target.glob("topic=*/*/*")]).to_table(["body"]).to_pylist()
            wanted = succeed("cat", site.store, "t", "--where", text).splitlines()
            assert 0 < len(wanted) < 3 * len(BODIES)
            assert sorted(row["body"].decode() for row in rows) == sorted(wanted)
    none = succeed("export", site.store, tmp_path / "none", "--where", "n > 1e9", "--format", form)
    assert none.startswith("0 messages in 0 files")
    other = mountctl("export", site.store, tmp_path / "0", "--where", "n > 1", "--format", form)
    assert "was started with other topics, times or --where" in other.stderr
    assert mountctl("export", site.store, tmp_path / "x", "--where", "n > 1", "--spark").returncode == 64


def test_24_a_group_passes_over_the_other_messages(site: Site) -> None:
    with store_of(site.store, [Message("t", body.encode()) for body in BODIES]):
        pass
    asked = "consume", site.store, "t/0", "-g", "g"
    assert succeed(*asked, "-n", "3", "--where", EXPRESSION).splitlines() == WANTED[:3]
    assert succeed(*asked, "--where", EXPRESSION).splitlines() == WANTED[3:]
    assert succeed(*asked) == ""


def test_25_other_hosts_are_asked_with_absolute_times() -> None:
    now_ms = 1_769_848_200_000
    asked = request("rows", ["t"], Selection(where=Where("a = 'x' and time > '-1m' or '@5' < time", now_ms)))
    assert asked.where == f"a = 'x' and time > {now_ms - 60_000} or 5 < time"


NAMES = ["level", "ms", "user", "a", "b", "key", "time", "in", "x y", "ü"]
NUMBERS = [
    0,
    -0.0,
    1,
    -1,
    500,
    501,
    499.5,
    1.0,
    2**53,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64,
    10**30,
    1e300,
    0.1,
]
TEXTS = ["error", "info", "", "a%b", "größe", "é\0", 'x"y', "a/b", "\\", "\n", "😀", "500", "true", "null"]
NO_OBJECTS = [
    *(b"", b"no JSON", b"\xff\xfe", b"{", b'{"level":"error",}', b'{"ms":NaN}', b'{"ms":1e400}', b'{"a":Infinity}'),
    *(b'{"level":"err\\u006fr"}', b'{"level":"\\ud800"}', b'{"\\u006cevel":"error"}', b'{"level":"error","x":"\xff"}'),
    *(b' {"ms": 501 }\n', b'{"ms":501}{"ms":502}', b'{"a":{"b":1}\n', b'{"a":[",}",1],"level":"error"}', b'{"ms":01}'),
    *(
        b"5",
        b'"error"',
        b"[1,[2,3]]",
        b"null",
        b'{"b":"NaN,]","ms":-0}',
        b'{"a":1\n,"level":"error"}',
        b"\xef\xbb\xbf{}",
    ),
]
PATHS = ["level", "ms", "user", "a", "b", "user.a", "a[0]", "a[1].b", "body.key", "body.in", 'body["x y"]', "body",
         "body[0]", "body[1][0]", "ü", "a.a.a"]  # fmt: skip
COLUMNS = ["key", "tag", "queue", "offset", "size", "time", "property.P"]


class Corpus:
    """Random bodies and random expressions."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        simple: list[Callable[[], Any]] = [
            lambda: self.random.choice(NUMBERS), lambda: self.random.choice(TEXTS),
            lambda: self.random.choice([True, False, None]),
        ]  # fmt: skip
        nested: list[Callable[[], Any]] = [
            lambda: {self.random.choice(NAMES): self.value(depth + 1) for _ in range(self.random.randrange(4))},
            lambda: [self.value(depth + 1) for _ in range(self.random.randrange(4))],
        ]
        return self.random.choice(simple + (nested if depth < 3 else []))()

    def body(self) -> bytes:
        if self.random.random() < 0.06:
            return self.random.choice(NO_OBJECTS)
        value = {name: self.value() for name in self.random.sample(NAMES, self.random.randrange(1, 7))}
        as_ascii, indent = self.random.random() < 0.5, self.random.choice([None, None, None, 1])
        return json.dumps(value, ensure_ascii=as_ascii, indent=indent).encode()

    def message(self) -> Message:
        keys = [self.random.choice(["K1", "K2", "k%"]) for _ in range(self.random.randrange(3))]
        properties = {"P": self.random.choice(["v", "größe"])} if self.random.random() < 0.3 else {}
        return Message("t", self.body(), keys, self.random.choice(["", "paid", "new"]), properties)

    def literal(self) -> str:
        texts = ["'" + text.replace("'", "''") + "'" for text in TEXTS if "\0" not in text]
        return self.random.choice([repr(self.random.choice(NUMBERS)), self.random.choice(texts), "true"])

    def test(self) -> str:
        operand = self.random.choice(PATHS * 2 + COLUMNS)
        sign, no = self.random.choice(["=", "!=", "<", "<=", ">", ">=", "<>"]), self.random.choice(["", "not "])
        if operand == "time":
            moment = self.random.choice(["'-1m'", "'2020-01-01'", "0", "5.5", "ms", "'@1'"])
            return f"time {sign} {moment}"
        literals = ", ".join(self.literal() for _ in range(self.random.randrange(1, 4)))
        pattern = self.random.choice(["%err%", "e%", "%", "_", "%r", "a%b%", "%ö%", "__", "%1", "K_"])
        own = {"key": "'K1'", "tag": "'paid'"}.get(operand, self.literal())
        tests = [
            *(f"{operand} {sign} {own}", f"{own} {sign} {operand}"),
            *(f"{operand} {sign} {self.random.choice(PATHS)}", f"{operand} {no}in ({literals})"),
            *(f"{operand} {no}like '{pattern}'", f"{operand} is {no}null"),
        ]
        return self.random.choice(tests)

    def expression(self, depth: int = 0) -> str:
        chance = self.random.random()
        if depth > 2 or chance < 0.45:
            return self.test()
        if chance < 0.6:
            return f"not ({self.expression(depth + 1)})"
        parts = [self.expression(depth + 1) for _ in range(self.random.randrange(2, 4))]
        return f"({self.random.choice([' and ', ' or ']).join(parts)})"


def test_23_sql_gives_the_same_rows_over_10_000_random_bodies(site: Site) -> None:
    import duckdb

    from mountctl.connect import mounted_tree
    from mountctl.verbs.sql import Between, Rows, make_views

    corpus = Corpus(7)
    expressions = [corpus.expression() for _ in range(25)]
    examples = {number: cases for number, cases in EXAMPLES.items() if number not in OTHERWISE_IN_SQL}
    expressions += [expression for cases in examples.values() for expression, _, _ in cases]
    with MessageStore.open(site.store, create=True) as store:
        for _ in range(10_000):
            store.put(corpus.message(), corpus.random.randrange(2))
        found = {
            one: {(queue, at) for queue in range(2) for at in true_for(store, one, queue=queue)} for one in expressions
        }
    assert sum(0 < len(rows) < 10_000 for rows in found.values()) > len(expressions) / 3, "the corpus tells little"
    with mounted_tree(str(site.store)) as mountpoint:
        for expression in expressions:
            with duckdb.connect() as connection:
                connection.execute("set TimeZone = 'UTC'")
                make_views(connection, mountpoint, "from t", Rows(Between(None, None), Where(expression)))
                rows = connection.execute("select queue, queue_offset from t").fetchall()
            assert set(rows) ^ found[expression] == set(), expression
