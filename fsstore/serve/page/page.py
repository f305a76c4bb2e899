"""The page: which link shows what. All views block, and run in a thread; the form of tokens does not.

/                    topics, the state of store and mount, groups
/page/topic?…        messages of a topic, newest first, and their histogram; a search in them
/page/rows?…         the newer ones, for the live tail
/page/message?…      one message
/page/body?…         its body alone: to keep, or as an image
/page/download?…     a selection as JSON lines or CSV
/page/parquet?…      files of a topic below @parquet
/page/fleet…         the same of several brokers: fleet_views.py
/page/data/…         for another server's page of several brokers: data.py
/page/login, logout  the form, which is sent here by POST
/page/static/NAME    style and script; for all
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from engine import MessageStore, StoreError, TopicNotFoundError
from fsstore.parquet.names import parse_segment, queue_partition, topic_partition
from fsstore.query.decoding import DecodeError, NoDecoderError, decode
from fsstore.serve.access import AccessError, Tokens
from fsstore.serve.connection import Answer, Request
from fsstore.serve.files import witness_of
from fsstore.serve.page.body import image_type, shown_body
from fsstore.serve.page.chart import HEIGHT, WIDTH, chart_of
from fsstore.serve.page.data import DATA, OwnData
from fsstore.serve.page.download import csv_rows, json_lines
from fsstore.serve.page.fleet import WITNESS, Fleet, Own
from fsstore.serve.page.fleet_views import FleetViews
from fsstore.serve.page.messages import behind, newest
from fsstore.serve.page.overview import PAGE_GROUPS, MountReports, topics_page
from fsstore.serve.page.rendering import SAFE, load_templates, render, static_answer
from fsstore.serve.page.search import Search
from fsstore.serve.page.selection import (
    FormError,
    Parameters,
    Selection,
    file_link,
    link,
    number_in,
    parameters_of,
    queues_of,
)
from fsstore.serve.page.sessions import Sessions
from fsstore.serve.tree import PathError, RefusedError, ServedTree
from fsstore.tree.names import can_be_name, to_name

PAGE = b"/page/"
STATIC = b"/page/static/"
LOGIN, LOGOUT = b"/page/login", b"/page/logout"
MOST_PARQUET = 1_000
DECODE_S, MOST_DECODED_BYTES = 5.0, 16 << 20
"""Limits of the time and the output of the command that decodes a body."""
_IMAGE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"


class Page:
    """The page of one server."""

    def __init__(
        self,
        tree: ServedTree,
        store: MessageStore | None,
        decode: str | None = None,
        fleet: Callable[[Own], Fleet] | None = None,
    ) -> None:
        """`store` follows the mount's; None: its files can't be read here, and the page is not served. `decode` is the
        command that decodes a body, if one does. `fleet` makes the fleet that is shown, too, with what answers for this
        server's own mount."""
        self._tree = tree
        self._store = store
        self._decode = decode
        self._reports = MountReports(tree)
        self._data = OwnData(tree, self._reports.state)
        self._fleet = None if fleet is None else fleet(self._own_data)
        self._sessions = Sessions()
        self._views: Mapping[bytes, Callable[[MessageStore, Parameters, dict[str, Any]], Answer]] = {
            b"/": self._overview,
            b"/page/topic": self._topic,
            b"/page/rows": self._rows,
            b"/page/message": self._message,
            b"/page/body": self._body,
            b"/page/download": self._download,
            b"/page/parquet": self._parquet,
        }
        if self._fleet is not None:
            of_all = FleetViews(self._fleet)
            self._views = {
                **self._views,
                b"/page/fleet": lambda _store, parameters, values: of_all.overview(parameters, values),
                b"/page/fleet/topic": lambda _store, parameters, values: of_all.topic(parameters, values),
            }
        load_templates()
        if store is not None:
            store.queue_states()  # the first call reads the directory of each queue

    # who may see it

    def client(self, request: Request, tokens: Tokens) -> str | None:
        """The client of a request that has a session; None: it has none."""
        if "cookie" not in request.headers or "authorization" in request.headers:
            return None
        holder = self._sessions.holder(request, tokens)
        return None if holder is None else f"token:{holder}"

    def for_all(self, request: Request) -> Answer | None:
        """The answer to a request that takes no token; None: it takes one. PathError."""
        if not request.path.startswith(STATIC):
            return None
        answer = static_answer(request.path.removeprefix(STATIC).decode("ascii", "replace"))
        if answer is None:
            raise PathError(404, "there is no such file")
        return answer

    def posted(self, request: Request, tokens: Tokens, address: str, is_encrypted: bool) -> Answer:
        """The answer to a form: a session begins, or ends. AccessError, PathError."""
        if request.path == LOGOUT:
            return _see("/", self._sessions.end(request, is_encrypted))
        if request.path != LOGIN:
            raise PathError(405, "no form is sent here")
        token = _form_of(request).get("token", "").strip()
        return _see(_target_of(request), self._sessions.begin(token, request, tokens, address, is_encrypted))

    def failure(self, error: RefusedError, request: Request, tokens: Tokens) -> Answer:
        """The page that says why there is none, with the form if a token helps."""
        is_from_elsewhere = request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        takes_token = isinstance(error, AccessError) and error.status in (401, 403, 429) and bool(tokens)
        values = {
            "status": error.status,
            "reason": str(error),
            "target": _target_of(request),
            "is_from_elsewhere": is_from_elsewhere and error.status == 403,
            "takes_token": takes_token and not is_from_elsewhere,
            "has_session": False,
        }
        answer = render("failure.html", values, error.status)
        more = {401: ("WWW-Authenticate", "Bearer"), 429: ("Retry-After", "60"), 503: ("Retry-After", "5")}
        answer.headers = [*answer.headers, *([more[error.status]] if error.status in more else [])]
        return answer

    # views

    def answer(self, request: Request, has_session: bool) -> Answer:
        """The answer to a request. Blocks. PathError, MountGoneError, StoreError, OSError."""
        is_data = request.path.startswith(DATA)
        view = self._views.get(request.path)
        if view is None and not is_data:
            raise PathError(404, "there is no such page")
        if self._store is None:
            raise PathError(501, "the page is not served: the server's user may not read the store's files")
        began_s = time.perf_counter()
        self._tree.require_answer()
        self._store.refresh()
        values = {"mountpoint": self._tree.mountpoint, "has_session": has_session, "link": link,
                  "fleet": "" if self._fleet is None else self._fleet.name, "took": lambda: (
            f"{1000 * (time.perf_counter() - began_s):.0f} ms"
        )}  # fmt: skip
        try:
            if view is None:
                return self._data.answer(request.path, self._store, parameters_of(request))
            return view(self._store, parameters_of(request), values)
        except TopicNotFoundError:
            raise PathError(404, "there is no such topic") from None

    def _own_data(self, name: str, parameters: Parameters) -> Any:
        """Data of this server's own mount, for the view of several brokers."""
        if name == WITNESS:
            return witness_of(self._tree, parameters)
        if self._store is None:
            raise PathError(501, "the server's user may not read the store's files")
        return self._data.find(name, self._store, parameters)

    def _overview(self, store: MessageStore, parameters: Parameters, values: dict[str, Any]) -> Answer:
        state = self._reports.state()
        groups = state.groups()
        first = (number_in(parameters, "groups") or 0) * PAGE_GROUPS
        shown = {
            "state": state,
            "groups": groups[first : first + PAGE_GROUPS],
            "groups_page": first // PAGE_GROUPS,
            "has_more_groups": len(groups) > first + PAGE_GROUPS,
            "topics": topics_page(store, parameters),
            "find": parameters.get("find", ""),
            "system": "system" in parameters,
        }
        return render("overview.html", values | shown)

    def _topic(self, store: MessageStore, parameters: Parameters, values: dict[str, Any]) -> Answer:
        selection = Selection.of(parameters)
        queues = queues_of(store, selection.topic)
        shown = {
            "selection": selection,
            "queues": queues,
            "is_live": "live" in parameters,
            "error": None,
            "chart": None,
            "found": None,
            "height": HEIGHT,
            "width": WIDTH,
        }
        try:
            ranges = selection.ranges(store)
            search = Search(store, self._tree, selection)
            found = newest(search, ranges)
            shown |= {
                "found": found,
                "chart": chart_of(search, ranges),
                "messages": sum(one.end - one.start for one in ranges),
            }
        except FormError as error:
            return render("topic.html", values | shown | {"error": error}, 400)
        return render("topic.html", values | shown)

    def _rows(self, store: MessageStore, parameters: Parameters, values: dict[str, Any]) -> Answer:
        selection = Selection.of(parameters)
        after = number_in(parameters, "after")
        try:
            found = behind(
                Search(store, self._tree, selection), selection.ranges(store), -1 if after is None else after
            )
        except FormError as error:
            raise PathError(400, str(error)) from None
        return render("rows.html", values | {"found": found})

    def _message(self, store: MessageStore, parameters: Parameters, values: dict[str, Any]) -> Answer:
        topic, queue, offset = _slot(parameters)
        bounds = store.bounds(topic, queue)
        place = {"topic": topic, "queue": queue}
        neighbours = {
            "oldest": bounds.min_offset,
            "previous": offset - 1,
            "next": offset + 1,
            "newest": bounds.max_offset - 1,
        }
        links = {
            name: link("/page/message", **place, offset=other)
            for name, other in neighbours.items()
            if bounds.min_offset <= other < bounds.max_offset and other != offset
        }
        shown = {**place, "offset": offset, "links": links, "message": None, "problem": ""}
        if not bounds.min_offset <= offset < bounds.max_offset:
            shown["problem"] = (
                f"there is no such message: the queue has {bounds.min_offset:,} to {bounds.max_offset - 1:,}"
            )
            return render("message.html", values | shown, 404)
        file_bytes = store.sizes.commit_log_bytes
        try:
            message = store.get(topic, queue, offset)
            body = message.copy_body()
            shown |= {"message": message, "properties": message.properties, "file_bytes": file_bytes}
            shown |= {"body": shown_body(body, parameters.get("as", ""))} | self._shown_decoded(
                body, (topic, queue, offset)
            )
        except StoreError as error:
            [entry] = store.entries(topic, queue, offset, 1)
            where = f"physical offset {int(entry['physical_offset']):,}, {int(entry['size']):,} bytes"
            shown["problem"] = f"{error} ({where})"
        parts = [to_name(topic), b"%d" % queue, b"%d" % offset]
        shown["file"] = file_link(parts) if can_be_name(parts[0]) else None
        return render("message.html", values | shown)

    def _shown_decoded(self, body: bytes, slot: tuple[str, int, int]) -> dict[str, Any]:
        """The values for a message's decoded body: the body, or the reason why there is none."""
        shown: dict[str, Any] = {"decoded": None, "decode_problem": ""}
        if self._decode is not None:
            try:
                shown["decoded"] = shown_body(self._decoded(body, slot), "")
            except PathError as error:
                shown["decode_problem"] = error.reason
        return shown

    def _decoded(self, body: bytes, slot: tuple[str, int, int]) -> bytes:
        """The body as the command decodes it. PathError."""
        if self._decode is None:
            raise PathError(404, "this server decodes no body")
        try:
            return decode(self._decode, body, slot, DECODE_S, MOST_DECODED_BYTES)
        except NoDecoderError as error:
            raise PathError(502, f"the command of --decode can't be run: {error.reason}") from None
        except DecodeError as error:
            raise PathError(502, f"the command of --decode failed: {error.reason}") from None

    def _body(self, store: MessageStore, parameters: Parameters, _values: dict[str, Any]) -> Answer:
        topic, queue, offset = _slot(parameters)
        body = store.get(topic, queue, offset).copy_body()
        if "decoded" in parameters:
            body = self._decoded(body, (topic, queue, offset))
        kind = image_type(body) if "image" in parameters else None
        headers = [
            *SAFE,
            ("Content-Type", kind or "application/octet-stream"),
            ("Content-Security-Policy", _IMAGE_POLICY),
            ("Cache-Control", "no-store"),
        ]
        if kind is None:
            headers.append(("Content-Disposition", f'attachment; filename="{queue}-{offset}"'))
        return Answer(200, headers, body=body)

    def _download(self, store: MessageStore, parameters: Parameters, _values: dict[str, Any]) -> Answer:
        selection = Selection.of(parameters)
        kinds = {"jsonl": ("application/jsonl", json_lines), "csv": ("text/csv; charset=utf-8", csv_rows)}
        if (name := parameters.get("format", "")) not in kinds:
            raise PathError(400, f"format is one of {', '.join(kinds)}")
        kind, pieces = kinds[name]
        try:
            search, ranges = Search(store, self._tree, selection), selection.ranges(store)
        except FormError as error:
            raise PathError(400, f"{error.name}: {error}") from None
        headers = [*SAFE, ("Content-Type", kind), ("Content-Disposition", f'attachment; filename="messages.{name}"')]
        return Answer(200, [*headers, ("Cache-Control", "no-store")], pieces=pieces(search, ranges))

    def _parquet(self, store: MessageStore, parameters: Parameters, values: dict[str, Any]) -> Answer:
        selection = Selection.of(parameters)
        files: list[tuple[int, int, int, str]] = []
        folder = (b"@parquet", topic_partition(selection.topic))
        for _, queue, start, end in _ranges(selection, store):
            parts = (*folder, queue_partition(queue))
            for name in self._tree.names(parts):
                segment = parse_segment(name)
                if segment is not None and segment.end > start and segment.begin < end and len(files) <= MOST_PARQUET:
                    files.append((queue, segment.begin, segment.end, file_link([*parts, name])))
        shown = {"selection": selection, "files": files[:MOST_PARQUET], "is_cut": len(files) > MOST_PARQUET}
        return render("parquet.html", values | shown)


def _ranges(selection: Selection, store: MessageStore) -> Sequence[Any]:
    try:
        return selection.ranges(store)
    except FormError as error:
        raise PathError(400, f"{error.name}: {error}") from None


def _slot(parameters: Parameters) -> tuple[str, int, int]:
    """Topic, queue and queue offset of a link. PathError."""
    topic, queue, offset = parameters.get("topic"), number_in(parameters, "queue"), number_in(parameters, "offset")
    if topic is None or queue is None or offset is None:
        raise PathError(400, "topic, queue and offset name a message")
    return topic, queue, offset


def _form_of(request: Request) -> dict[str, str]:
    """The fields of a form; none if they are too many."""
    try:
        return dict(parse_qsl(request.form.decode("ascii", "replace"), max_num_fields=8))
    except ValueError:
        return {}


def _target_of(request: Request) -> str:
    """The view that a request asks for, or that a form leads to; the first page if it is none of this server."""
    target = request.target if request.method == "GET" else _form_of(request).get("to", "/")
    is_view = target == "/" or target.startswith(("/?", "/page/"))
    return target if is_view and target.isascii() and target.isprintable() else "/"


def _see(target: str, cookie: tuple[str, str]) -> Answer:
    return Answer(303, [("Location", target), cookie, ("Cache-Control", "no-store"), *SAFE])
