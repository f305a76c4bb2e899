"""The page's parts without a server: sessions, forms of bodies, links, what is hidden."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Message, MessageStore, QueueState, StoreConfig
from engine.derived.consume_queues import ConsumeQueues
from fsstore.query.hist import edges_of, fitting_span_ms
from fsstore.serve.access import AccessError, Tokens
from fsstore.serve.connection import Request
from fsstore.serve.page import search as search_module
from fsstore.serve.page.body import DEEPEST, JSON_BYTES, MOST_NODES, TEXT_BYTES, image_type, preview_of, shown_body
from fsstore.serve.page.chart import FEWEST_BARS, MOST_BARS, chart_of
from fsstore.serve.page.messages import newest
from fsstore.serve.page.overview import PAGE_TOPICS, topics_page
from fsstore.serve.page.rendering import human_size, human_span, human_time, visible
from fsstore.serve.page.search import Search
from fsstore.serve.page.selection import FormError, Selection, link, number_in, parameters_of
from fsstore.serve.page.sessions import LIFETIME_S, MOST_SESSIONS, WRONG_TOKENS, Sessions
from fsstore.serve.tree import PathError, ServedTree
from tests.mount.claims import carried, promised

TOKEN, OTHER = "5f0e3c1a9b7d2468ace013579bdf2468", "ace013579bdf24685f0e3c1a9b7d2468"
TOKENS = Tokens({"ann": TOKEN, "bob": OTHER})
PROJECT = Path(__file__).parents[2]


def test_every_promise_has_a_test_and_every_test_its_promise() -> None:
    document = promised(PROJECT / "docs/page.md")
    assert len(document) > 15
    kept = carried(PROJECT / "tests/mountctl/test_page_promises*.py")
    assert kept == document


# sessions


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def request(cookie: str = "", host: str = "localhost:9870", target: str = "/") -> Request:
    return Request("GET", target, b"/", {}, {"host": host, "cookie": cookie})


def begun(sessions: Sessions, token: str = TOKEN, address: str = "10.0.0.7") -> str:
    """The cookie of a new session."""
    name, value = sessions.begin(token, request(), TOKENS, address, is_encrypted=False)
    assert name == "Set-Cookie"
    assert "Secure" not in value
    return value.partition(";")[0]


def test_a_session_is_for_its_token_and_ends() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    cookie = begun(sessions)
    assert sessions.holder(request(cookie), TOKENS) == "ann"
    assert sessions.holder(request(begun(sessions, OTHER)), TOKENS) == "bob"
    for wrong in ("", cookie[:-1], cookie + "0", "fsstore-9870=", "fsstore-9870", "=;=", "fsstore-9870=é"):
        assert sessions.holder(request(wrong), TOKENS) is None
    assert sessions.holder(request(cookie, host="localhost:9871"), TOKENS) is None  # that server's cookie has its name
    assert sessions.holder(request(cookie), Tokens({"ann": OTHER})) is None
    clock.now += LIFETIME_S
    assert sessions.holder(request(cookie), TOKENS) is None


def test_sessions_are_limited() -> None:
    sessions = Sessions(Clock())
    first, *_, last = [begun(sessions) for _ in range(MOST_SESSIONS + 1)]
    assert sessions.holder(request(first), TOKENS) is None
    assert sessions.holder(request(last), TOKENS) == "ann"


def test_wrong_tokens_are_limited_by_address() -> None:
    clock = Clock()
    sessions = Sessions(clock)

    def status(token: str, address: str = "10.0.0.7") -> int:
        try:
            sessions.begin(token, request(), TOKENS, address, is_encrypted=True)
        except AccessError as error:
            return error.status
        return 303

    assert [status("wrong") for _ in range(WRONG_TOKENS)] == [401] * WRONG_TOKENS
    assert [status("wrong"), status(TOKEN), status(TOKEN, "10.0.0.8")] == [429, 429, 303]
    clock.now += 60
    assert status(TOKEN) == 303


# bodies


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b"", "text"),
        (b"12 apples", "text"),
        ("größer ✓".encode(), "text"),
        (b"a\0b", "hex"),
        (b"\xff\xfe", "hex"),
        (b' {"a": 1}', "json"),
        (b"[1, 2", "text"),
        (b'"text"', "text"),
        (b"\x89PNG\r\n\x1a\n....", "image"),
        (b"GIF89a....", "image"),
        (b"\xff\xd8\xff....", "image"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "text"),
    ],
)
def test_the_form_of_a_body(body: bytes, form: str) -> None:
    assert shown_body(body, "").form == form
    assert shown_body(body, "hex").form == "hex"
    assert (image_type(body) is not None) == (form == "image")


def test_json_keeps_order_names_that_come_twice_and_numbers_as_written() -> None:
    tree = shown_body(b'{"z":1.50,"a":[true,null,"x"],"z":123456789012345678901234567890}', "json").tree
    assert tree is not None
    assert [(node.name, node.kind, node.text) for node in tree.members] == [
        ("z", "number", "1.50"),
        ("a", "array", ""),
        ("z", "number", "123456789012345678901234567890"),
    ]
    assert [(node.kind, node.text) for node in tree.members[1].members] == [
        ("literal", "true"),
        ("literal", "null"),
        ("string", "x"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1),
        b"[" * 100_000,
        json.dumps(list(range(MOST_NODES))).encode(),
        b'["' + b"x" * JSON_BYTES + b'"]',
        b"[" + b"9" * 100_000 + b"e]",
        b'{"a": NaN, }',
    ],
)
def test_json_that_is_too_much_is_text(body: bytes) -> None:
    assert shown_body(body, "json").form == "text"


def test_a_long_text_is_cut_between_characters() -> None:
    shown = shown_body(b"x" + "é".encode() * TEXT_BYTES, "")
    assert shown.text == "x" + "é" * (TEXT_BYTES // 2 - 1)
    assert (shown.is_cut, shown.size) == (True, 2 * TEXT_BYTES + 1)


def test_the_begin_of_a_body_is_one_line() -> None:
    assert preview_of(b"a\n\n  b\tc") == "a b c"
    assert preview_of(b"ab\xc3") == "ab"  # a character is cut
    assert preview_of(b"\xff\0") == "ff 00"


# searches


def test_a_search_without_time_goes_on_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"SEARCH_S": 0, "FIRST_PIECE": 16, "LARGEST_PIECE": 64}.items():
        monkeypatch.setattr(search_module, name, number)
    tree = ServedTree(str(tmp_path), lambda: None)
    wanted = []
    with MessageStore.open(tmp_path / "store", create=True) as store:
        store.create_topic("orders", 3)
        for number in range(900):
            put = store.put(Message("orders", b'{"n": %d}' % (number % 7)), queue=(number * number) % 3)
            wanted += [(put.queue, put.queue_offset)] * (number % 7 == 0)
        selection = Selection("orders", where="n = 0")
        found: list[tuple[int, int]] = []
        pages = 0
        while True:
            listed = newest(Search(store, tree, selection), selection.ranges(store))
            found += [(row.queue, row.offset) for row in listed.rows]
            pages += 1
            if listed.before is None:
                break
            selection = replace(selection, before=listed.before)
    assert found == wanted[::-1]
    assert pages > 5


def test_a_histogram_of_messages_that_are_a_century_apart(tmp_path: Path) -> None:
    times = [0, 4_000_000_000_000]
    with MessageStore.open(tmp_path, StoreConfig(clock=lambda: times[0]), create=True) as store:
        for time_ms in (0, 4_000_000_000_000):
            times[0] = time_ms
            store.put(Message("orders", b"odd"), queue=0)
        selection = Selection("orders")
        chart = chart_of(Search(store, ServedTree(str(tmp_path), lambda: None), selection), selection.ranges(store))
    assert chart is not None
    assert FEWEST_BARS < len(chart.bars) <= MOST_BARS + 1
    assert [bar.messages for bar in chart.bars if bar.messages] == [1, 1]


@pytest.mark.parametrize("first_ms", [-(1 << 62), 1 << 62])
def test_a_time_in_no_calendar_has_no_spans(first_ms: int) -> None:
    with pytest.raises(ValueError, match=r"calendar|out of range"):
        edges_of(first_ms, (1 << 63) - 1, fitting_span_ms(first_ms, (1 << 63) - 1, 60))


# what people read


def test_hidden_characters_are_shown() -> None:
    assert visible("a\x00b\x1b[1m\u202ec\ud800\n\tü😀") == "a\\u0000b\\u001b[1m\\u202ec\\ud800\n\tü😀"


def test_sizes_times_and_spans() -> None:
    assert [human_size(size) for size in (0, 1_023, 1_536, 5 << 40)] == ["0 B", "1,023 B", "1.5 KiB", "5.0 TiB"]
    assert [human_span(span) for span in (1, 15_000, 300_000, 21_600_000, 604_800_000)] == [
        "0.001 s", "15 s", "5 min", "6 h", "7 d",
    ]  # fmt: skip
    assert human_time(None) == "–"
    assert human_time((1 << 63) - 1) == "@9223372036854775807"
    assert human_time(1_795_859_622_766)[:4] == "2026"


# topics


def test_a_page_of_topics_looks_at_no_topic_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"topic-{number:03d}" for number in range(2 * PAGE_TOPICS + 10)]
    with MessageStore.open(tmp_path, create=True) as store:
        store.create_topics(dict.fromkeys([*names, "BenchmarkTest", "wide"], 1))
        store.put(Message("topic-007", b"one"), queue=0)
        looked_at: list[str] = []
        state = ConsumeQueues.state

        def noting(queues: ConsumeQueues, topic: str, queue: int) -> QueueState:
            looked_at.append(topic)
            return state(queues, topic, queue)

        monkeypatch.setattr(ConsumeQueues, "state", noting)
        first = topics_page(store, {})
        assert [one.topic for one in first.topics] == names[:PAGE_TOPICS]
        assert (first.total, first.hidden, first.page, first.first, first.is_last) == (len(names) + 1, 1, 0, 0, False)
        assert {*looked_at} == {*names[:PAGE_TOPICS], "BenchmarkTest"}
        last = topics_page(store, {"page": "9"})
        assert [one.topic for one in last.topics] == [*names[2 * PAGE_TOPICS :], "wide"]
        assert (last.page, last.first, last.is_last) == (2, 2 * PAGE_TOPICS, True)
        found = topics_page(store, {"find": "C-007", "system": "1"})
        assert [(one.topic, one.messages) for one in found.topics] == [("topic-007", 1)]
        nothing = topics_page(store, {"find": "nothing", "page": "3"})
        assert (list(nothing.topics), nothing.total, nothing.is_last) == ([], 0, True)


# links


def test_a_link_has_the_selection_that_it_was_made_of() -> None:
    for topic in ("orders", "a/b?c&d#e", "\udcff", "ä ö+%41"):
        one = Selection(topic, 3, "-1h", "@5", "k&1", " t=2 ", "a < 'ü'", 77)
        assert Selection.of(parameters_of(request(target=one.link()))) == one
    assert link("/page/topic", topic="a", queue=None, text="", live=False, at=0) == "/page/topic?topic=a&at=0"


def test_links_that_mean_nothing() -> None:
    for query in (
        "",
        "topic=",
        "topic=a&queue=x",
        "topic=a&before=-1",
        f"topic=a&before={1 << 63}",
        f"topic={'a' * 4_001}",
    ):
        with pytest.raises(PathError):
            Selection.of(parameters_of(request(target=f"/page/topic?{query}")))
    with pytest.raises(PathError):
        parameters_of(request(target="/?" + "&".join(f"a{number}=1" for number in range(65))))
    with pytest.raises(PathError):
        number_in({"page": "٣"}, "page")
    for time in ("yesterday", "@99999999999999999", "-1x"):
        with pytest.raises(FormError):
            Selection("orders", since=time).times_ms()
