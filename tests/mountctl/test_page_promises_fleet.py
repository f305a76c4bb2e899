"""docs/page.md, 5: several brokers on one page, over real mounts and servers that are none."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from engine import Message, MessageStore, StoreConfig
from fsstore.fleet.hadoop_tokens import TOKEN_FILE, hadoop_token_file
from fsstore.serve.page.fleet import ANSWER_S, MOST_BYTES
from tests.mountctl.conftest import Site, eventually, mountctl, site_in
from tests.mountctl.served import CERTIFICATES, FIRST_TOKEN, SECOND_TOKEN, Server, served, tokens_in
from tests.mountctl.test_page_promises import Tags, link, links, page, words

BEGIN_MS = 1_795_000_000_000
EACH = 70
NONE = "its answer is none of `mountctl serve`"
MARKUP = "<img src=x onerror=alert(1)>"


@dataclass
class Clock:
    now_ms: int = BEGIN_MS

    def __call__(self) -> int:
        return self.now_ms


def fill(path: Path, first: int) -> None:
    """Messages of `orders`, one every two seconds from second `first` on, and a topic that is here alone."""
    clock = Clock()
    with MessageStore.open(path, StoreConfig(clock=clock), create=True) as store:
        store.create_topics({"orders": 2, f"only-{first}": 1, **{f"many-{n:02d}": 1 for n in range(60 * first)}})
        for number in range(EACH):
            second = first + 2 * number
            clock.now_ms = BEGIN_MS + 1000 * second
            body = json.dumps({"n": second, "level": "error" if second % 10 < 2 else "info"}).encode()
            store.put(Message("orders", body, [f"K-{second // 4}"]), queue=number % 2)


@dataclass(frozen=True)
class FleetSite:
    """The server with the page of several brokers, that of `b`, and their mounts."""

    server: Server
    other: Server
    own_site: Site
    other_site: Site


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetSite]:
    """`a` beside the server, `b` with a token, `gone`, where nothing listens, and `shell`, by ssh alone."""
    folder = tmp_path_factory.mktemp("fleet")
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        sites = []
        for number, name in enumerate("ab"):
            (folder / name).mkdir()
            site = stack.enter_context(contextmanager(site_in)(folder / name))
            fill(site.store, number)
            sites.append(site.mounted())
        tokens = tokens_in(folder / "tokens", ann=FIRST_TOKEN)
        other = stack.enter_context(served(sites[1].mountpoint, folder / "b", "--tokens", tokens))
        config = folder / ".config/fsstore/fleet.toml"
        config.parent.mkdir(parents=True)
        config.write_text(
            f'[prod]\na = "{sites[0].mountpoint}"\nb = "{other.origin}"\n'
            f'gone = "http://127.0.0.1:9"\nshell = "host:/mnt/mq"\n'
        )
        (folder / "hadoop").write_bytes(hadoop_token_file(FIRST_TOKEN, ["127.0.0.1"], other.port))
        patch.setenv("HOME", str(folder))
        patch.setenv(TOKEN_FILE, str(folder / "hadoop"))
        server = stack.enter_context(served(sites[0].mountpoint, folder / "a", "--fleet", "@prod"))
        yield FleetSite(server, other, *sites)


def seconds(html: str) -> list[tuple[str, int]]:
    """Broker and second of each listed message."""
    found = re.findall(r'data-title="Broker"><bdi>(\w+)</bdi>.*?&#34;n&#34;: (\d+)', html, re.DOTALL)
    return [(broker, int(second)) for broker, second in found]


def expected(newest: int, count: int) -> list[tuple[str, int]]:
    return [("ab"[second % 2], second) for second in range(newest, newest - count, -1)]


def test_topics(fleet: FleetSite) -> None:
    """5.1 With `--fleet @GROUP`, `/page/fleet` lists the topics of all brokers in that group of
    `~/.config/fsstore/fleet.toml`, each with its broker. It also lists the brokers with log, disk, access and each
    problem. At most 50 topics of a broker are listed, with the number of the others."""
    assert links(page(fleet.server, "/"), "@prod") == ["/page/fleet"]
    html = page(fleet.server, "/page/fleet")
    text = words(html)
    assert re.search(r"\bonly-0 a 0 0 B", text), text
    assert re.search(r"\bmany-01 b 0 0 B", text), text
    assert re.search(r"\borders a 70 \d", text), text
    assert re.search(r"\ba 2 \d+(\.\d)? \w+, 1 file of .*? free of .*? write\b", text), text
    assert "b has 12 more topics" in text
    assert re.findall(r'href="([^"]*)"><bdi>b</bdi>', html) == [
        f"{fleet.other.origin}/",
        *(f"{fleet.other.origin}{link('topic', topic=f'many-{n:02d}')}" for n in range(50)),
    ]
    found = words(page(fleet.server, "/page/fleet?find=rders"))
    assert re.search(r"orders a 70 .*orders b 70 ", found), found
    assert "only-0" not in found
    one = words(page(fleet.server, "/page/fleet?find=orders&broker=b"))
    assert "orders a" not in one
    assert "gone" not in one.replace("a b gone shell", "")
    page(fleet.server, "/page/fleet?broker=nothing", 404)
    with (
        pytest.raises(OSError, match="Invalid"),
        (fleet.other_site.mountpoint / "orders/0/append@format=json").open("wb", 0) as file,
    ):
        file.write(b"no json\n")
    eventually(
        lambda: "Refused publications (malformed): 1" in words(page(fleet.server, "/page/fleet?broker=b")),
        "the refusal is shown",
    )
    assert "/page/fleet" not in page(fleet.other, "/")
    page(fleet.other, "/page/fleet", 404)


def test_messages(fleet: FleetSite) -> None:
    """5.2 A topic shows the messages of all brokers, newest first by store time, each with its broker. A search
    applies to every broker, and one more field selects a single broker. "Older" continues where the page ended, even
    if messages were published meanwhile."""
    newest = 2 * EACH - 1
    first = page(fleet.server, link("fleet/topic", topic="orders", until="2027-01-01"))
    assert seconds(first) == expected(newest, 50)
    for site in (fleet.own_site, fleet.other_site):
        (site.mountpoint / "orders/1/append").write_bytes(b'{"n": 9999}\n')
    seen, following = seconds(first), links(first, "Older")
    while following:
        html = page(fleet.server, following[0])
        seen += seconds(html)
        following = links(html, "Older")
    assert seen == expected(newest, 2 * EACH)

    def found(topic: str = "orders", **parameters: object) -> list[tuple[str, int]]:
        return seconds(page(fleet.server, link("fleet/topic", topic=topic, **parameters)))

    assert found(key="K-3") == [("b", 15), ("a", 14), ("b", 13), ("a", 12)]
    assert found(key="K-3", broker="a") == [("a", 14), ("a", 12)]
    assert found(text='"n": 33,') == [("b", 33)]
    assert found(where='level = "error" and n < 12') == [("b", 11), ("a", 10), ("b", 1), ("a", 0)]
    assert found(from_=f"@{BEGIN_MS + 9000}", until=f"@{BEGIN_MS + 12000}") == [("b", 11), ("a", 10), ("b", 9)]
    assert found(topic="only-1") == []
    targets = re.findall(r'data-row href="([^"]*)"', page(fleet.server, link("fleet/topic", topic="orders", key="K-3")))
    assert [target.startswith(f"{fleet.other.origin}/page/message?") for target in targets] == [True, False] * 2
    wrong = page(fleet.server, link("fleet/topic", topic="orders", where="level = = 5"), 400)
    assert "level = <mark>⟨here⟩</mark>= 5" in wrong
    page(fleet.server, link("fleet/topic", topic="orders", older='{"a": -1}'), 400)


def test_histogram(fleet: FleetSite) -> None:
    """5.3 The histogram has the messages of all brokers in the times shown, and names each broker that it lacks."""
    times = {"from_": f"@{BEGIN_MS}", "until": f"@{BEGIN_MS + 3_600_000}"}
    html = page(fleet.server, link("fleet/topic", topic="orders", **times))
    assert f"{2 * EACH} messages, a bar for 5 s" in words(html)
    counts = re.findall(r'<td><a href="([^"]*)">[^<]*</a></td><td class="n">([\d,]+)</td>', html)
    assert sum(int(count) for _, count in counts) == 2 * EACH
    zoomed = page(fleet.server, counts[3][0].replace("&amp;", "&"))
    assert f"{counts[3][1]} messages, a bar for 1 s" in words(zoomed)
    assert len(seconds(zoomed)) == int(counts[3][1])
    one = page(fleet.server, link("fleet/topic", topic="orders", broker="b", **times))
    assert f"{EACH} messages, a bar for" in words(one)


class Stranger(BaseHTTPRequestHandler):
    """A server that is none of ours. Its answers are those of `answers`, by the end of the path."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}
    asked: ClassVar[list[tuple[str, str | None]]] = []
    ended = threading.Event()
    cut = threading.Event()
    """The client was gone before the end of an answer."""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        self.asked.append((self.path, self.headers["Authorization"]))
        status, body = self.answers.get(name, (404, b""))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body.decode())
        self.send_header("Content-Length", "1000" if body == b"slow" else str(len(body)))
        self.end_headers()
        try:
            while body == b"slow" and not self.ended.wait(0.2):
                self.wfile.write(b" ")
            self.wfile.write(body)
        except OSError:
            self.cut.set()

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    """The URL of a Stranger."""
    Stranger.answers, Stranger.asked = {}, []
    Stranger.ended.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Stranger.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def beside(fleet: FleetSite, stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose fleet is its own mount and the stranger, for which it has a token."""
    config = tmp_path / ".config/fsstore/fleet.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[some]\na = "{fleet.own_site.mountpoint}"\nstrange = "{stranger}"\n')
    port = int(stranger.rpartition(":")[2])
    (tmp_path / "hadoop").write_bytes(hadoop_token_file(SECOND_TOKEN, ["127.0.0.1"], port))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "hadoop"))
    with served(fleet.own_site.mountpoint, tmp_path, "--fleet", "@some") as server:
        yield server


ROW = {
    "queue": 0, "offset": 1, "physical_offset": 2, "time_ms": BEGIN_MS + 500_000, "body_size": 3, "keys": [MARKUP],
    "tags": MARKUP, "preview": f"\u202e{MARKUP}", "problem": "",
}  # fmt: skip
MESSAGES = {
    "rows": [ROW], "before": None, "looked_at": 0, "is_cut": True, "damaged": 1, "first_ms": BEGIN_MS,
    "last_ms": BEGIN_MS + 9000,
}  # fmt: skip


def test_brokers_that_do_not_answer(fleet: FleetSite, beside: Server, stranger: str) -> None:
    """5.4 If a broker can't be asked, does not answer within 5 s, answers with more than 4 MiB, or is not such a
    server, the page names it with the reason, and shows the others."""
    for view in ("/page/fleet", link("fleet/topic", topic="orders")):
        text = words(page(fleet.server, view))
        assert re.search(r"Not on this page gone : \[Errno 111\] Connection refused shell : the page asks servers: the "
                         r"fleet file has no url for it", text), text  # fmt: skip
        assert "orders" in text
    view = link("fleet/topic", topic="orders", until=f"@{BEGIN_MS + 3_600_000}")
    for answer, reason in (
        ((200, json.dumps(MESSAGES | {"damaged": -1}).encode()), f"{NONE}: Expected `int` >= 0"),
        ((200, json.dumps(MESSAGES | {"rows": [ROW] * 51}).encode()), f"{NONE}: Expected `array`"),
        ((200, json.dumps(MESSAGES | {"first_ms": 1 << 70}).encode()), NONE),
        ((200, json.dumps(MESSAGES | {"rows": [ROW | {"tags": None}]}).encode()), "Expected `str`, got `null`"),
        ((200, b"\xff"), NONE),
        ((200, b""), NONE),
        ((200, b" " * (MOST_BYTES + 1)), "its answer has more than 4,194,304 bytes"),
        ((503, b"<b>not now</b>" + b"x" * 9_000_000), "its answer has more than 4,194,304 bytes"),
        ((503, f"{MARKUP}{'x' * 999}".encode()), f"503 Service Unavailable: {MARKUP}"),
        ((302, f"{fleet.other.origin}/page/data/messages".encode()), "302 Found: "),
        ((200, b"slow"), f"no answer within {ANSWER_S:g} s"),
    ):  # fmt: skip
        Stranger.answers = {"messages": answer}
        Stranger.cut.clear()
        html = page(beside, view)
        assert re.search(rf"Not on this page strange : (\S+ )*{re.escape(reason)}", words(html)), words(html)
        assert seconds(html)[:2] == [("a", 138), ("a", 136)]
        assert "<img" not in html
    assert Stranger.cut.wait(ANSWER_S), "the connection is ended"
    Stranger.answers = {"messages": (200, json.dumps(MESSAGES).encode()), "counts": (200, b'{"counts": [1]}')}
    assert "The histogram lacks: strange ." in words(page(beside, view))
    done = mountctl("serve", fleet.own_site.mountpoint, "--listen", "127.0.0.1:0", "--fleet", "@nothing")
    assert done.returncode != 0
    assert "there is no group @nothing with places in it; there are: @some" in done.stderr


def test_their_answers_are_no_markup(beside: Server, stranger: str) -> None:
    """5.5 Servers are asked only at the `url` of the fleet file, and redirects are not followed. The tokens come
    from `HADOOP_TOKEN_FILE_LOCATION`, as for [Spark](fleet.md#5-one-spark-job-over-all-brokers). Nothing in their
    answers is markup."""
    topic = {
        "topic": MARKUP, "queues": (1 << 63) - 1, "messages": 1, "stored_bytes": 1, "is_exact": False,
        "oldest_ms": -((1 << 63) - 1), "newest_ms": (1 << 63) - 1, "per_second": 1e12,
    }  # fmt: skip
    store = {"topics": [topic], "total": 10**18, "hidden": 0, "facts": {"Log": MARKUP}, "problems": [MARKUP] * 50}
    Stranger.answers = {
        "topics": (200, json.dumps(store).encode()),
        "messages": (200, json.dumps(MESSAGES).encode()),
        "counts": (200, json.dumps({"counts": [0] * 60}).encode()),
    }
    for view in ("/page/fleet", link("fleet/topic", topic="orders", where="n >= 0")):
        html = page(beside, view)
        assert MARKUP in words(html)
        for tag, attributes in Tags(html).found:
            assert tag != "img"
            targets = {str(attributes.get(name, "/")) for name in ("src", "href", "action")}
            assert all(target.startswith(("/", "#", f"{stranger}/")) for target in targets), targets
            assert not any(name.startswith("on") or name == "style" for name in attributes)
    assert {token for _, token in Stranger.asked} == {f"Bearer {SECOND_TOKEN}"}
    assert all(path.startswith(("/page/data/", "/witness?")) for path, _ in Stranger.asked)
    Stranger.answers["messages"] = (302, f"{stranger}/page/data/elsewhere".encode())
    page(beside, link("fleet/topic", topic="orders"))
    assert not any("elsewhere" in path for path, _ in Stranger.asked)


@contextmanager
def page_of(places: dict[str, str], own: Path, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server beside the mount `own`, with the page of these places."""
    config = folder / ".config/fsstore/fleet.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[some]\n" + "".join(f'{name} = "{place}"\n' for name, place in places.items()))
    patch.setenv("HOME", str(folder))
    with served(own, folder, "--fleet", "@some") as server:
        yield server


def test_brokers_with_one_log(
    fleet: FleetSite, stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """5.6 `/page/fleet` says which brokers hold the same log, compared as in
    [fleet 5.4](fleet.md#5-one-spark-job-over-all-brokers). It compares them when it is first shown and every 10
    minutes, and shows the result from the next time on."""
    own = fleet.own_site.mountpoint
    record = {"topic": "orders", "queue": 0, "queue_offset": 1, "facts": {"physical_offset": "9" * 5_000}}
    Stranger.answers = {
        "topics": (200, b"{}"),
        "witness": (200, json.dumps({"messages": 1, "newest": record}).encode()),
    }
    (tmp_path / "copy").mkdir()
    places = {"strange": stranger, "a": str(own), "b": fleet.other.origin}
    with (
        served(own, tmp_path / "copy") as copy,
        page_of({**places, "copy": copy.origin}, own, tmp_path, monkeypatch) as server,
    ):
        assert "has the log of" not in words(page(server, "/page/fleet"))
        eventually(lambda: "copy has the log of a" in words(page(server, "/page/fleet")), "the logs are compared")
        assert words(page(server, "/page/fleet")).count("has the log of") == 1


def test_certificates_of_brokers(fleet: FleetSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5.7 A server at an `https` URL is asked only if its certificate is for the URL's host and comes from a CA of the
    system or of `SSL_CERT_FILE`. Any other is named as in 5.4, and receives no request."""
    kinds = {"good": ("server", "127.0.0.1"), "wrong": ("stranger", "127.0.0.1"), "elsewhere": ("server", "127.0.0.2")}
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
    with ExitStack() as stack:
        servers, places = {}, {}
        for name, (certificate, address) in kinds.items():
            (folder := tmp_path / name).mkdir()
            options = "--certificate", CERTIFICATES / f"{certificate}.pem"
            servers[name] = stack.enter_context(served(fleet.other_site.mountpoint, folder, *options, address=address))
            places[name] = f"https://{address}:{servers[name].port}"
        server = stack.enter_context(page_of(places, fleet.own_site.mountpoint, tmp_path, monkeypatch))
        text = words(page(server, "/page/fleet?find=orders"))
        assert re.search(r"\borders good \d+ ", text), text
        assert re.search(r"\bwrong : \[SSL: CERTIFICATE_VERIFY_FAILED\]", text), text
        assert re.search(r"\belsewhere : \[SSL: CERTIFICATE_VERIFY_FAILED\] .*IP address mismatch", text), text
        assert servers["good"].logged("/page/data/topics")
        assert not servers["wrong"].access_log.read_text()
        assert not servers["elsewhere"].access_log.read_text()
