"""docs/page.md: the page over real mounts, by HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlencode

import pytest

from engine import Message, MessageStore, OpenMode, StoreConfig
from fsstore.serve.page.rendering import POLICY
from fsstore.serve.page.sessions import WRONG_TOKENS
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, eventually, site_in, succeed
from tests.mountctl.served import CERTIFICATES, FIRST_TOKEN, SECOND_TOKEN, Reply, Server, served, tokens_in

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>"\'{{7*7}}'
HOSTILE_TOPIC = "<img src=x onerror=alert(1)>"
PLAIN_TOPIC = "x" * len(HOSTILE_TOPIC)
LONG = b"0123456789abcdef" * 8_192
QUEUES, EACH = 3, 200
BATCHES, BATCH = 100, 3_000


def body_of(number: int) -> bytes:
    return json.dumps({"n": number, "level": "error" if number % 10 == 0 else "info", "ms": number * 1.5}).encode()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A mount with `orders` in three queues, `many` of 300,000 messages, and topics with one message of each kind."""
    for site in site_in(tmp_path_factory.mktemp("page")):
        with MessageStore.open(site.store, create=True) as store:
            store.create_topics({"orders": QUEUES, "BenchmarkTest": 1_024, "many": 2, "kinds": 1})
            for number in range(QUEUES * EACH):
                message = Message("orders", body_of(number), keys=[f"K{number}", f"tens-{number // 10}"], tags="paid")
                store.put(message, queue=number % QUEUES)
            for number in range(BATCHES):
                store.put_lines("many", b'{"level":"rare"}\n' + b'{"level":"info"}\n' * (BATCH - 1), queue=number % 2)
            for body in (PNG, b'{"a":[1,{"b":12345678901234567890.50}]}', LONG, bytes(range(256)), b""):
                store.put(Message("kinds", body, properties={"colour": "green"}), queue=0)
            store.put(Message("hostile", HOSTILE.encode(), keys=[f"k{HOSTILE.replace(' ', '')}"], tags=HOSTILE,
                              properties={HOSTILE.replace(" ", ""): f"\u202e{HOSTILE}"}), queue=0)  # fmt: skip
            store.put(Message(PLAIN_TOPIC, b"<svg onload=alert(1)>"), queue=0)
            store.commit_offset("slow", "orders", 0, 10)
            store.commit_offset("quick", "orders", 0, EACH)
        rename_topic(site.store, PLAIN_TOPIC, HOSTILE_TOPIC)
        yield site.mounted()


def rename_topic(store: Path, name: str, other: str) -> None:
    """Give a topic a name of as many characters that no put accepts, as another program's store may have it."""
    for path in (*(store / "commitlog").iterdir(), store / "config/topics.json"):
        path.write_bytes(path.read_bytes().replace(name.encode(), other.encode()))
    (store / "consumequeue" / name).rename(store / "consumequeue" / other)


@pytest.fixture(scope="module")
def server(mounted: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(mounted.mountpoint, tmp_path_factory.mktemp("server")) as server:
        yield server


def link(view: str, **parameters: object) -> str:
    return f"/page/{view}?{urlencode({name.strip('_'): value for name, value in parameters.items()})}"


def page(server: Server, path: str, status: int = 200, **headers: str) -> str:
    """The HTML of a view, which has to have every header that protects it."""
    reply = server.ask(path, "GET", None, **headers)
    assert reply.status == status, reply.body.decode()
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"
    return reply.body.decode()


def words(html: str) -> str:
    """The text of a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


class Tags(HTMLParser):
    """The elements of a page, as a browser finds them: their names and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def rows(html: str) -> list[tuple[int, int]]:
    """Queue and queue offset of the listed messages."""
    links = re.findall(r'data-row href="/page/message\?topic=[^"]*?&amp;queue=(\d+)&amp;offset=(\d+)"', html)
    return [(int(queue), int(offset)) for queue, offset in links]


def links(html: str, text: str) -> list[str]:
    """Where the links with a text lead."""
    return [unescape(target) for target in re.findall(rf'<a[^>]*href="([^"]*)"[^>]*>{re.escape(text)}</a>', html)]


def places(numbers: range) -> list[tuple[int, int]]:
    return [(number % QUEUES, number // QUEUES) for number in numbers]


# 1


def test_topics(server: Server) -> None:
    """1.1 `/` lists the topics with their messages, size, rate of the last minute, newest and oldest message. Empty
    topics of RocketMQ's own are hidden until asked for; the page shows their number."""
    html = page(server, "/")
    cells = words(html)
    assert re.search(r"orders 600 \d+\.\d KiB [\d.]+ 20\d\d-\S+ \S+ 20\d\d-\S+ \S+ 3\b", cells), cells
    assert re.search(r"many 300,000 ≈ \d+\.\d MiB", cells), cells
    assert "BenchmarkTest" not in html
    assert "1 empty ones of RocketMQ's own" in cells
    every = page(server, links(html, "1 empty ones of RocketMQ's own")[0])
    assert re.search(r"BenchmarkTest 0 0 B 0 – – 1,024", words(every))
    found = words(page(server, "/?find=RDER"))
    assert "orders 600" in found
    assert "many" not in found


def test_state_and_groups(server: Server, mounted: Site, tmp_path: Path) -> None:
    """1.2 `/` shows the state of the store and its mount: retention, and each problem (damage, refused publications,
    why nothing can be published). It also shows the groups with their lag in each topic, the largest first."""
    text = words(page(server, "/"))
    assert f"Store {mounted.store} Mounted at {mounted.mountpoint}" in text
    assert "Retention off: nothing is deleted" in text
    assert re.search(r"slow orders 1 190 quick orders 1 0", text), text
    with (
        pytest.raises(OSError, match="Invalid"),
        (mounted.mountpoint / "orders/0/append@format=json").open("wb", 0) as file,
    ):
        file.write(b"no json\n")
    eventually(lambda: "Refused publications (malformed): 1" in words(page(server, "/")), "the refusal is shown")
    for site in site_in(tmp_path):
        with MessageStore.open(site.store, create=True) as store:
            store.put(Message("orders", b"one"), queue=0)
        site.mounted("--read-only")
        with served(site.mountpoint, tmp_path) as other:
            assert "To look at Nothing can be published: " in words(page(other, "/"))


def test_newest_first(server: Server, mounted: Site) -> None:
    """1.3 A topic shows the messages of all queues in the order of the log, newest first, 50 on a page. "Older"
    continues where the page ended, even if messages were published meanwhile."""
    first = page(server, link("topic", topic="orders"))
    assert rows(first) == places(range(599, 549, -1))
    [older] = links(first, "Older")
    (mounted.mountpoint / "orders/1/append").write_bytes(b"newer\n")
    assert rows(page(server, older)) == places(range(549, 499, -1))
    eventually(lambda: rows(page(server, link("topic", topic="orders")))[0] == (1, 200), "the new one is shown")
    one_queue = page(server, link("topic", topic="orders", queue=2))
    assert rows(one_queue) == [(2, offset) for offset in range(199, 149, -1)]
    seen: list[tuple[int, int]] = []
    following: list[str] = [link("topic", topic="orders", before=json_line(mounted, 600)["physical_offset"])]
    while following:
        html = page(server, following[0])
        seen += rows(html)
        following = links(html, "Older")
    assert seen == places(range(599, -1, -1))


def json_line(site: Site, number: int) -> dict[str, int]:
    """The message that was published as that one of `orders`, as `cat` prints it."""
    queue, offset = (1, 200) if number == 600 else (number % QUEUES, number // QUEUES)
    line: dict[str, int] = json.loads(succeed("cat", site.mountpoint, f"orders/{queue}/{offset}", "--json"))
    return line


def test_bodies(server: Server) -> None:
    """1.4 A message shows its body as an image, folding JSON, text or hexadecimal numbers. Of a longer text it shows
    the first 64 KiB, the full size, and a link to the whole text."""
    image, tree, text, numbers, empty = (link("message", topic="kinds", queue=0, offset=at) for at in range(5))
    [source] = re.findall(r'<img class="body" src="([^"]*)"', page(server, image))
    shown = server.ask(unescape(source))
    assert (shown.body, shown.headers["content-type"]) == (PNG, "image/png")
    folded = page(server, tree)
    assert folded.count("<details open>") == 3
    assert "12345678901234567890.50" in folded
    assert "{&#34;a&#34;:[1," in page(server, tree + "&as=text")
    long = page(server, text)
    [pre] = re.findall(r'<pre class="body">(.*?)</pre>', long, re.DOTALL)
    assert words(pre) == LONG[: 64 << 10].decode()
    assert "The first 64.0 KiB of 128.0 KiB" in words(long)
    whole = server.ask(links(long, "The whole body")[0])
    assert whole.body == LONG
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith("attachment")
    assert "000000f0  f0 f1 f2" in page(server, numbers)
    assert "Body 0 B" in words(page(server, empty))


def test_a_message(server: Server, mounted: Site) -> None:
    """1.5 A message shows its properties, its neighbours in the queue, and its place: queue offset, physical offset,
    file, and record size."""
    known = json_line(mounted, 301)
    html = page(server, link("message", topic="orders", queue=1, offset=100))
    text = words(html)
    assert "TAGS paid" in text
    assert "KEYS K301 tens-30" in text
    assert f"Physical offset {known['physical_offset']:,} File commitlog/{0:020d}, at" in text
    assert f"Record {known['store_size']} bytes" in text
    assert "Queue offset 100 in queue 1" in text
    for name, offset in (("Oldest", 0), ("Previous", 99), ("Next", 101)):
        assert links(html, name) == [link("message", topic="orders", queue=1, offset=offset)]
    assert links(page(server, link("message", topic="orders", queue=1, offset=0)), "Previous") == []
    [file] = links(html, "orders/1/100")
    assert server.ask(file).body == body_of(301)
    assert "there is no such message" in page(server, link("message", topic="orders", queue=1, offset=9_999), 404)


def test_live(server: Server, mounted: Site) -> None:
    """1.6 A live tail adds new messages at the top while the page is open. Without the script the browser reloads
    the page."""
    topic = mounted.mountpoint / "live"
    topic.mkdir()
    (topic / "0/append").write_bytes(b"one\ntwo\n")
    eventually(lambda: len(rows(page(server, link("topic", topic="live", live=1)))) == 2, "the topic is shown")
    html = page(server, link("topic", topic="live", live=1))
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in html
    [source] = map(unescape, re.findall(r'data-live="([^"]*)"', html))
    [after] = re.findall(r'data-after="(\d+)"', html)
    assert rows(page(server, f"{source}&after={after}")) == []
    (topic / "0/append").write_bytes(b"three\nfour\n")
    eventually(lambda: rows(page(server, f"{source}&after={after}")) == [(0, 3), (0, 2)], "the new rows come")
    selected = link("rows", topic="live", text="four", after=after)
    assert rows(page(server, selected)) == [(0, 3)]


def test_damage(tmp_path: Path) -> None:
    """1.7 The list shows a damaged message with the reason, and its neighbours as usual."""
    for site in site_in(tmp_path):
        with MessageStore.open(site.store, create=True) as store:
            at = [store.put(Message("orders", b"body %d" % number), queue=0).physical_offset for number in range(3)]
        [log] = (site.store / "commitlog").iterdir()
        whole = log.read_bytes()
        log.write_bytes(whole.replace(b"body 1", b"cody 1"))
        site.mounted()
        with served(site.mountpoint, tmp_path) as server:
            html = page(server, link("topic", topic="orders"))
            assert rows(html) == [(0, 2), (0, 1), (0, 0)]
            assert "CRC" in words(html)
            message = page(server, link("message", topic="orders", queue=0, offset=1))
            assert f"physical offset {at[1]:,}" in words(message)
            assert [len(links(message, name)) for name in ("Previous", "Next")] == [1, 1]
            assert b'"problem":' in server.ask(link("download", topic="orders", format="jsonl")).body
        succeed("umount", site.mountpoint)
        log.write_bytes(whole)


def test_decoded_bodies(mounted: Site, tmp_path: Path) -> None:
    """1.8 With `mountctl serve --decode COMMAND` a message also shows what a shell's COMMAND prints for its body,
    ahead of the published body. If COMMAND fails, takes longer than 5 s or prints more than 16 MiB, the message is
    shown with the reason."""
    command = (
        "case $MQ_OFFSET in 0) cat;; 1) tr a-z A-Z;; 2) echo '<b>bad</b>' >&2; exit 3;; 3) yes;; *) sleep 60;; esac"
    )
    with served(mounted.mountpoint, tmp_path, "--decode", command) as server:
        image, upper, failing, endless, slow = (
            page(server, link("message", topic="kinds", queue=0, offset=at)) for at in range(5)
        )
        assert words(upper).index("Decoded 39 B, as a command of this server prints it") < words(upper).index(
            "Body 39 B"
        )
        assert re.findall(r'class="name">(.)<', upper) == ["A", "0", "1", "B", "a", "0", "1", "b"]
        [source, _] = re.findall(r'<img class="body" src="([^"]*)"', image)
        assert server.ask(unescape(source)).body == PNG
        assert server.ask(links(upper, "keep it")[0]).body == b'{"A":[1,{"B":12345678901234567890.50}]}'
        for html, reason in (
            (failing, "it ended with 3: <b>bad</b>"),
            (endless, "it printed more than 16,777,216 bytes"),
            (slow, "it took longer than 5 s"),
        ):
            assert f"the command of --decode failed: {reason}" in words(html)
            assert "Where it lies" in words(html)
    with served(mounted.mountpoint, tmp_path, "--decode", "no-such-command") as server:
        html = words(page(server, link("message", topic="orders", queue=0, offset=0)))
        assert re.search("the command of --decode can't be run: .*no-such-command: not found.*Where it lies", html)


# 2


def test_searches(server: Server) -> None:
    """2.1 Key, text, an expression as for `--where`, queue and times can be combined; the page shows the messages
    that match all of them."""

    def found(**parameters: object) -> list[tuple[int, int]]:
        return rows(page(server, link("topic", topic="orders", **parameters)))

    assert found(key="K17") == places(range(17, 18))
    assert found(key="tens-5") == places(range(59, 49, -1))
    assert found(key="tens-5", where='level = "error"') == places(range(50, 51))
    assert found(key="tens-5", queue=0) == [one for one in places(range(59, 49, -1)) if one[0] == 0]
    assert found(text='"n": 33,') == places(range(33, 34))
    assert found(text='"error"', where="ms < 50") == places(range(30, -1, -10))
    assert found(where='key = "K7" or n = 9 and size > 1') == [places(range(n, n + 1))[0] for n in (9, 7)]
    assert found(where="n >= 0") == places(range(599, 549, -1))
    assert found(key="nothing") == found(from_="2100-01-01") == found(until="@0") == []
    assert len(found(from_="-1h", until="2100-01-01")) == 50


def test_what_means_nothing(server: Server) -> None:
    """2.2 An invalid expression or time is answered 400, with the field, the reason, and the position in the
    expression."""
    html = page(server, link("topic", topic="orders", where="level = = 5"), 400)
    assert "where: " in words(html)
    assert "level = <mark>⟨here⟩</mark>= 5" in html
    assert "from: no time" in words(page(server, link("topic", topic="orders", from_="yesterday"), 400))
    for path in ("topic?topic=none", "message?topic=orders&queue=99&offset=0", "nothing"):
        assert "This can't be shown" in words(page(server, f"/page/{path}", 404))
    for path in ("topic", "topic?topic=orders&before=-1", "message?topic=orders", "download?topic=orders&format=exe"):
        page(server, f"/page/{path}", 400)


def test_a_long_search_goes_on(server: Server) -> None:
    """2.3 After a second a search shows the messages that it has found, and how many it has searched. "Older"
    continues there, and skips none in between."""
    following = [link("topic", topic="many", where='level = "rare"')]
    seen: list[tuple[int, int]] = []
    looked_at = 0
    while following:
        html = page(server, following[0])
        seen += rows(html)
        [count] = re.findall(r"([\d,]+) messages were looked at", words(html))
        looked_at += int(count.replace(",", ""))
        following = links(html, "Older")
    assert seen == [(number % 2, number // 2 * BATCH) for number in reversed(range(BATCHES))]
    assert BATCHES * BATCH <= looked_at < 2 * BATCHES * BATCH


def test_histogram(server: Server) -> None:
    """2.4 The histogram counts all messages in the times shown. It also counts the matches among them if there are
    at most 20,000 messages and 64 MiB. Each bar is a link to its time. Other links lead to wider, earlier and later
    times."""

    def counts(html: str) -> list[tuple[str, int]]:
        table = html[html.index("As a table") :]
        found = re.findall(r'<td><a href="([^"]*)">[^<]*</a></td><td class="n">([\d,]+)</td>', table)
        return [(unescape(target), int(count.replace(",", ""))) for target, count in found]

    html = page(server, link("topic", topic="many"))
    bars = counts(html)
    assert sum(count for _, count in bars) == 300_000
    assert f"{bars[0][0]}".replace("&", "&amp;") in html[: html.index("As a table")]
    zoomed = counts(page(server, bars[0][0]))
    assert sum(count for _, count in zoomed) == bars[0][1]
    assert sum(count for _, count in counts(page(server, links(page(server, bars[0][0]), "Wider")[0]))) >= bars[0][1]
    assert links(html, "Earlier")
    assert links(html, "Later")
    assert "60 of them found" in words(page(server, link("topic", topic="orders", where='level = "error"')))


def test_links(server: Server) -> None:
    """2.5 Every view has a link that shows the same view to others."""
    selected = link("topic", topic="orders", queue=1, key="tens-5", where="n > 1", until="2100-01-01")
    html = page(server, selected)
    for name, value in {"key": "tens-5", "where": "n &gt; 1", "until": "2100-01-01", "queue": "1"}.items():
        assert re.search(rf'name="{name}"[^>]*value="{re.escape(value)}"', html), name
    assert rows(html) == rows(page(server, selected))


def test_downloads(server: Server, mounted: Site) -> None:
    """2.6 A selection can be downloaded as JSON lines, with the fields of `mountctl cat --json`, or as CSV. The page
    links to the topic's files below `@parquet`."""
    lines = server.ask(link("download", topic="kinds", format="jsonl"))
    assert lines.headers["content-disposition"] == 'attachment; filename="messages.jsonl"'
    printed = succeed("cat", mounted.mountpoint, "kinds", "--json").splitlines()
    assert [json.loads(line) for line in lines.body.splitlines()] == [json.loads(line) for line in printed]
    html = page(server, link("topic", topic="orders", where='level = "error"', queue=0))
    assert len(server.ask(links(html, "JSON lines")[0]).body.splitlines()) == EACH // 10
    rows_of_csv = server.ask(links(html, "CSV")[0]).body.decode().split("\r\n")
    assert rows_of_csv[0].startswith("topic,queue,offset,store_time")
    assert len(rows_of_csv) == EACH // 10 + 2
    files = page(server, link("parquet", topic="orders"))
    targets = links(files, "Download")
    assert server.ask(targets[0]).body[:4] == b"PAR1"


# 3


@pytest.fixture(scope="module")
def guarded(mounted: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with TLS, and tokens in the file beside its log, which says by which right a request was let in."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = tokens_in(folder / "tokens", ann=FIRST_TOKEN, bob=SECOND_TOKEN)
    with served(mounted.mountpoint, folder, "--tokens", tokens, "--certificate", CERTIFICATES / "server.pem") as server:
        yield server


def post(server: Server, path: str, form: str, **headers: str) -> Reply:
    """Send a form, as a browser does."""
    trusting = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=DEADLINE_SECONDS, context=trusting)
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    try:
        connection.request("POST", path, form, {"Content-Type": "application/x-www-form-urlencoded", **named})
        answer = connection.getresponse()
        return Reply(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def log_in(server: Server, token: str, to: str = "/") -> Reply:
    return post(server, "/page/login", urlencode({"token": token, "to": to}))


def client_of(server: Server, **headers: str) -> str:
    """The client for which a request is taken."""
    before = len(server.logged(" page ", 0))
    server.ask("/", "GET", None, **headers)
    return server.logged(" page ", before + 1)[-1][1]


def test_sessions(guarded: Server) -> None:
    """3.1 If a token is needed, the page asks for it in a form, and answers 401, or 403 to a user of this machine.
    The browser gets a cookie for it: HttpOnly, SameSite=Strict, and with TLS also Secure. The cookie's value is not
    the token. It is valid until logout, for at most 12 hours, and no longer than the server runs or the token is
    valid."""
    refused = guarded.ask("/page/topic?topic=orders", Authorization="Bearer wrong")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    form = refused.body.decode()
    assert '<form method="post" action="/page/login"' in form
    assert 'type="password"' in form
    assert 'name="to" value="/page/topic?topic=orders"' in form
    begun = log_in(guarded, FIRST_TOKEN, "/page/topic?topic=orders")
    assert (begun.status, begun.headers["location"]) == (303, "/page/topic?topic=orders")
    value, *attributes = begun.headers["set-cookie"].split("; ")
    assert sorted(attributes) == ["HttpOnly", "Max-Age=43200", "Path=/", "SameSite=Strict", "Secure"]
    assert value.startswith(f"fsstore-{guarded.port}=")
    assert FIRST_TOKEN not in value
    assert client_of(guarded) == f"user:{os.geteuid()}"
    assert client_of(guarded, Cookie=value) == "token:ann"
    assert client_of(guarded, Cookie=f"{value[:-1]}-") == f"user:{os.geteuid()}"
    assert 'action="/page/logout"' in page(guarded, "/", Cookie=value)
    assert guarded.ask("/files/orders/0/0", Cookie=value).status == 200
    assert guarded.logged("files")[-1][1] == "token:ann"
    for elsewhere in ("https://example.org/", "//example.org", "/files/orders.log", "/page/x\r\nX: y"):
        assert log_in(guarded, FIRST_TOKEN, elsewhere).headers["location"] == "/"
    other = log_in(guarded, SECOND_TOKEN).headers["set-cookie"].partition(";")[0]
    ended = post(guarded, "/page/logout", "", Cookie=value)
    assert (ended.status, "Max-Age=0" in ended.headers["set-cookie"]) == (303, True)
    assert client_of(guarded, Cookie=value) == f"user:{os.geteuid()}"
    assert client_of(guarded, Cookie=other) == "token:bob"
    tokens_in(guarded.access_log.parent / "tokens", ann=FIRST_TOKEN)
    guarded.process.send_signal(signal.SIGHUP)
    eventually(
        lambda: client_of(guarded, Cookie=other) == f"user:{os.geteuid()}", "the token's end is that of its session"
    )


def test_tokens_stay_secret(guarded: Server) -> None:
    """3.2 The token is in no link and in no log. An address that sent ten wrong tokens is answered 429 until the
    next minute. A form of more than 16 KiB is not read."""
    began = log_in(guarded, FIRST_TOKEN)
    assert FIRST_TOKEN not in str(began.headers) + began.body.decode()
    assert post(guarded, "/page/login", "", Content_Length="16385").status == 401  # the answer waits for nothing of it
    answers = [log_in(guarded, f"{number}{FIRST_TOKEN}").status for number in range(3 * WRONG_TOKENS)]
    assert answers[:5] == [401] * 5
    assert 429 in answers
    refused = answers.index(429)
    assert set(answers[refused : refused + 5]) == {429}
    eventually(lambda: len(guarded.logged("/page/login")) > WRONG_TOKENS, "the logins are logged")
    for log in (guarded.access_log, guarded.messages):
        assert FIRST_TOKEN not in log.read_text()


def test_publishers_write_no_markup(server: Server) -> None:
    """3.3 Published data is never markup. Names, keys, properties and bodies are shown as text, with the code
    numbers of hidden characters. The policy of each page forbids scripts, styles and images from other sites, forms
    to other sites, and frames. An image in a body gets the type of its first bytes, and a sandbox."""
    views = [
        "/",
        link("topic", topic="hostile"),
        link("topic", topic="hostile", text=HOSTILE, key=HOSTILE, where=f"'{HOSTILE}"),
        link("message", topic="hostile", queue=0, offset=0),
        link("message", topic="hostile", queue=0, offset=0, as_="hex"),
        link("rows", topic="hostile", after=0),
        link("topic", topic=HOSTILE_TOPIC),
        link("parquet", topic=HOSTILE_TOPIC),
        link("nothing", topic=HOSTILE),
    ]
    for view in views:
        reply = server.ask(view)
        html = reply.body.decode()
        assert reply.headers["content-security-policy"] == POLICY
        for tag, attributes in Tags(html).found:
            assert tag not in ("svg", "iframe", "object", "style") or attributes.get("class") == "chart"
            assert tag != "script" or str(attributes["src"]).startswith("/page/static/page.js?")
            assert not any(name.startswith("on") or name == "style" for name in attributes)
            targets = {str(attributes.get(name, "/")) for name in ("src", "href", "action")}
            assert all(target.startswith(("/", "#")) for target in targets)
        assert "7*7" not in html or "{{7*7}}" in html or "%7B%7B7%2A7%7D%7D" in html
    assert "\\u202e" in page(server, link("message", topic="hostile", queue=0, offset=0))
    assert rows(page(server, link("topic", topic=HOSTILE_TOPIC))) == [(0, 0)]
    image = server.ask(link("body", topic="kinds", queue=0, offset=0, image=1))
    assert (image.headers["content-type"], image.headers["x-content-type-options"]) == ("image/png", "nosniff")
    assert "sandbox" in image.headers["content-security-policy"]
    other = server.ask(link("body", topic="hostile", queue=0, offset=0, image=1))
    assert other.headers["content-type"] == "application/octet-stream"


def test_links_from_other_sites(server: Server) -> None:
    """3.4 A link from another site opens a page that shows the link's target. No message is read until the user
    follows it."""
    target = link("topic", topic="orders", where="n > 1")
    html = page(server, target, 403, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")
    assert "A link from another site" in words(html)
    assert rows(html) == []
    [through] = re.findall(r'class="button" href="([^"]*)"', html)
    assert unescape(through) == target
    assert len(rows(page(server, target, Sec_Fetch_Site="same-origin"))) == 50


def test_it_only_reads(guarded: Server) -> None:
    """3.5 Methods other than GET and HEAD are refused, except for the forms that begin and end a session."""
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert guarded.ask("/page/topic?topic=orders", method).status == 405
    for path in ("/", "/page/topic?topic=orders", "/page/nothing"):
        assert post(guarded, path, "topic=orders").status == 405
    assert post(guarded, "/page/login", f"token={FIRST_TOKEN}", Sec_Fetch_Site="cross-site").status == 403
    assert guarded.ask("/", "HEAD").body == b""


# 4


def processor_s(server: Server) -> float:
    """What the server has taken of the processors, in all its threads."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reading_all_s(store: Path, topic: str) -> float:
    """What it takes of a processor to read each message of a topic of two queues."""
    with MessageStore.open(store, StoreConfig(mode=OpenMode.FOLLOW)) as followed:
        before_s = time.process_time()
        assert sum(1 for queue in range(2) for _ in followed.read(topic, queue, 0)) == BATCHES * BATCH
        return time.process_time() - before_s


def test_costs(mounted: Site, server: Server) -> None:
    """4.1 No view reads all messages, except the list of Parquet files, which the mount makes. The first page and a
    topic's newest messages take at most 200 ms of a processor, however many messages there are. If a topic is too
    large, its size and rate are marked as estimates."""
    most_s = min(reading_all_s(mounted.store, "many") / 2, 0.2)
    for path in ("/", "/?system=1", link("topic", topic="many"), link("message", topic="many", queue=0, offset=9)):
        page(server, path)
        before_s = processor_s(server)
        for _ in range(20):
            assert re.search(r'<span class="note">\d+ ms</span>', page(server, path))
        assert (processor_s(server) - before_s) / 20 < most_s, path
    assert "≈" in page(server, "/")


def test_threads(server: Server) -> None:
    """4.2 Threads make the views, and each client has a share of them: a long search delays neither the server nor
    other clients."""
    slow = link("topic", topic="many", where='no.thing like "%x%" or level = "none"')
    with ThreadPoolExecutor(8) as browsers:
        searches = [browsers.submit(page, server, slow) for _ in range(8)]
        answered = 0
        while not all(search.done() for search in searches):
            assert server.ask("/page/static/page.css").status == 200
            answered += 1
        assert all("messages were looked at" in search.result() for search in searches)
    assert answered > 3


def test_own_parts(server: Server) -> None:
    """4.3 The page loads nothing from other sites: style and script come from the server. Everything except shortcut
    keys and live tail works without the script."""
    html = page(server, link("topic", topic="orders"))
    parts = re.findall(r'(?:src|href)="([^"]*static[^"]*)"', html)
    assert len(parts) == 2
    for part in parts:
        reply = server.ask(part)
        assert (reply.status, reply.headers["cache-control"]) == (200, "max-age=31536000, immutable")
        assert not re.search(rb"https?://|@import|url\(", reply.body)
    assert not re.search(r'(?:src|href|action)="(?!/|#)', html)
    assert server.ask("/page/static/../page.py").status == 404
