"""The views of several brokers: all their topics, and the messages of a topic, each with its broker.

/page/fleet?find=…&broker=…      brokers with their state, topics of all
/page/fleet/topic?…              messages of a topic, newest first, and their histogram; `older` is where a page begins
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fsstore.serve.connection import Answer
from fsstore.serve.page.chart import HEIGHT, WIDTH, Chart
from fsstore.serve.page.data import CountsData, MessagesData, StoreData
from fsstore.serve.page.fleet import Fleet, merged, parse_before, spans_of, summed_chart
from fsstore.serve.page.rendering import render
from fsstore.serve.page.search import where_of
from fsstore.serve.page.selection import FormError, Parameters, Selection

VIEW = "/page/fleet/topic"


class FleetViews:
    """The views of one fleet. All block, for fleet.ANSWER_S at most each time that brokers are asked. PathError."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def overview(self, parameters: Parameters, values: dict[str, Any]) -> Answer:
        """Brokers and their topics."""
        asked = {name: text for name, text in parameters.items() if name in ("find", "system")}
        answers = self._fleet.ask("topics", dict.fromkeys(self._fleet.chosen(parameters), asked), StoreData)
        topics = sorted(
            ((topic, broker) for broker, store in answers.found.items() for topic in store.topics),
            key=lambda one: (one[0].topic, one[1]),
        )
        shown = {
            "stores": answers.found,
            "same_log": self._fleet.same_log(),
            "topics": topics,
            "more": {
                broker: store.total - len(store.topics)
                for broker, store in answers.found.items()
                if store.total > len(store.topics)
            },
            "find": parameters.get("find", ""),
            "system": "system" in parameters,
        }
        return render("fleet.html", values | self._shown(parameters, answers.problems) | shown)

    def topic(self, parameters: Parameters, values: dict[str, Any]) -> Answer:
        """Messages of a topic."""
        selection, chosen = Selection.of(parameters), self._fleet.chosen(parameters)
        before = parse_before(parameters.get("older", ""))
        more: dict[str, object] = {"broker": parameters.get("broker")}
        shown: dict[str, Any] = {"selection": selection, "more": more, "view": VIEW, "error": None, "chart": None}
        shown |= {"height": HEIGHT, "width": WIDTH, "rows": None, "found": {}, "uncounted": []}
        try:
            selection.times_ms()
            where_of(selection.where)
        except FormError as error:
            return render("fleet_topic.html", values | self._shown(parameters, {}) | shown | {"error": error}, 400)
        query = selection.parameters()
        each = {name: query | ({"before": str(before[name])} if name in before else {}) for name in chosen}
        answers = self._fleet.ask("messages", each, MessagesData)
        rows, older = merged(answers.found, before)
        chart, uncounted = self._chart(selection, more, answers.found)
        shown |= {
            "rows": rows,
            "found": answers.found,
            "chart": chart,
            "uncounted": uncounted,
            "is_older": bool(before),
        }
        encoded = None if older is None else msgspec.json.encode(older).decode()
        shown["older"] = None if older is None else selection.link(VIEW, more={**more, "older": encoded})
        return render("fleet_topic.html", values | self._shown(parameters, answers.problems) | shown)

    def _shown(self, parameters: Parameters, problems: Mapping[str, str]) -> dict[str, Any]:
        """The values that both views show."""
        return {"brokers": self._fleet.brokers, "broker": parameters.get("broker", ""), "problems": problems}

    def _chart(
        self, selection: Selection, more: dict[str, object], found: Mapping[str, MessagesData]
    ) -> tuple[Chart | None, list[str]]:
        """The histogram of the messages found, and the brokers whose messages it lacks."""
        filled = [broker for broker, one in found.items() if one.first_ms is not None]
        spans = spans_of(found)
        if spans is None:
            return None, filled
        edges, span_ms = spans
        number = len(edges) - 1
        asked = selection.parameters() | {"begin": str(edges[0]), "span": str(span_ms), "spans": str(number)}
        answers = self._fleet.ask("counts", dict.fromkeys(filled, asked), CountsData)
        counts = {
            broker: one.counts
            for broker, one in answers.found.items()
            if one.counts is not None and len(one.counts) == number
        }

        def between(begin_ms: int, end_ms: int) -> str:
            return selection.link(VIEW, more=more, since=f"@{max(begin_ms, 0)}", until=f"@{end_ms}")

        if not counts:
            return None, filled
        return summed_chart(edges, span_ms, list(counts.values()), between), [
            *filter(lambda one: one not in counts, filled)
        ]
