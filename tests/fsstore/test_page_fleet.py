"""How the answers of several brokers become one page."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from fsstore.query.hist import SPANS_MS
from fsstore.serve.page.chart import MOST_BARS
from fsstore.serve.page.data import MessagesData, RowData
from fsstore.serve.page.fleet import merged, parse_before, spans_of, summed_chart
from fsstore.serve.page.messages import PAGE_ROWS
from fsstore.serve.page.selection import MAX_OFFSET
from fsstore.serve.tree import PathError


def answer(*times: int | None, before: int | None = None, first: int | None = 0) -> MessagesData:
    """What a broker finds: a message of a time is at that physical offset, one without a time 10 below the last."""
    rows, at = [], 0
    for time in times:
        at = time if time is not None else at - 10
        rows.append(RowData(0, at, at, time, 1, [], "", "", "damaged" if time is None else ""))
    return MessagesData(rows, before, 0, False, 0, first, times[0] if times else None)


def test_messages_come_by_time_and_each_page_goes_on_where_the_last_one_ended() -> None:
    stored = {"a": list(range(1_000, 0, -2)), "b": list(range(600, 0, -3)), "empty": []}
    seen: list[tuple[str, int]] = []
    before: dict[str, int] = {}
    pages = 0
    while True:
        found = {}
        for broker, times in stored.items():
            left = [time for time in times if time < before.get(broker, MAX_OFFSET)]
            older = left[PAGE_ROWS - 1] if len(left) > PAGE_ROWS else None
            found[broker] = answer(*left[:PAGE_ROWS], before=older)
        rows, following = merged(found, before)
        seen += [(row.broker, row.message.physical_offset) for row in rows]
        pages += 1
        if pages == 3:
            stored["a"].insert(0, 2_000)  # what is published meanwhile is on no later page
        if following is None:
            break
        before = following
    expected = [("a", time) for time in range(1_000, 0, -2)] + [("b", time) for time in range(600, 0, -3)]
    assert seen == sorted(expected, key=lambda one: (-one[1], one[0]))
    assert pages == len(expected) // PAGE_ROWS


def test_a_broker_that_shows_nothing_of_its_own_yet_goes_on_at_its_newest() -> None:
    found = {"new": answer(*range(500, 500 - PAGE_ROWS, -1), before=451), "old": answer(30, 20)}
    assert merged(found, {})[1] == {"new": 451, "old": 31}
    [row] = answer(30).rows
    last = msgspec.structs.replace(answer(), rows=[msgspec.structs.replace(row, physical_offset=MAX_OFFSET)])
    assert merged({**found, "old": last}, {})[1] == {"new": 451, "old": MAX_OFFSET}


def test_a_search_that_was_cut_goes_on_and_a_broker_without_answer_stays_where_it_was() -> None:
    rows, following = merged({"a": answer(before=700), "b": answer(5)}, {"away": 17})
    assert [row.broker for row in rows] == ["b"]
    assert following == {"a": 700, "b": 0, "away": 17}
    assert merged({"a": answer(3), "b": answer()}, {}) == (merged({"a": answer(3)}, {})[0], None)


def test_a_message_without_a_time_stays_behind_the_one_before_it() -> None:
    rows, _ = merged({"a": answer(None, 90, None, 50), "b": answer(85, 60)}, {})
    assert [(row.broker, row.message.time_ms) for row in rows] == [
        ("a", None), ("a", 90), ("a", None), ("b", 85), ("b", 60), ("a", 50),
    ]  # fmt: skip


@pytest.mark.parametrize("last_ms", [0, 999, 60_000, 86_400_000, 20 * 365 * 86_400_000, 2**45])
def test_a_histogram_has_all_times_in_some_spans(last_ms: int) -> None:
    first_ms = 1_795_000_000_000
    spans = spans_of({"a": answer(first_ms, first=first_ms), "b": answer(first_ms + last_ms, first=first_ms)})
    assert spans is not None
    edges, span_ms = spans
    assert 2 <= len(edges) <= MOST_BARS + 1
    assert edges[0] <= first_ms
    assert edges[-1] > first_ms + last_ms
    assert {end - begin for begin, end in pairwise(edges)} == {span_ms}
    assert span_ms in SPANS_MS or last_ms >= 20 * 365 * 86_400_000


@pytest.mark.parametrize(("first_ms", "last_ms"), [(-1, 5), (-MAX_OFFSET, MAX_OFFSET), (MAX_OFFSET, MAX_OFFSET)])
def test_times_of_no_calendar_have_no_histogram(first_ms: int, last_ms: int) -> None:
    assert spans_of({"a": answer(last_ms, first=first_ms)}) is None
    assert spans_of({"a": answer(first=None)}) is None


def test_a_histogram_is_the_sum_of_those_of_the_brokers() -> None:
    chart = summed_chart([0, 10, 20], 10, [[1, 2], [30, 40]], lambda begin, end: f"{begin}-{end}")
    assert [(bar.messages, bar.link) for bar in chart.bars] == [(31, "0-10"), (42, "10-20")]
    assert (chart.wider, chart.earlier, chart.later) == ("-20-40", "-20-0", "20-40")


def test_before_is_a_number_for_each_broker() -> None:
    assert parse_before("") == {}
    assert parse_before('{"a":7}') == {"a": 7}
    for text in ("7", "{", '{"a":-1}', '{"a":9223372036854775808}', '{"a":"7"}', "[]", "\udcff"):
        with pytest.raises(PathError):
            parse_before(text)
