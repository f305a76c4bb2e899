"""The looks: each opens views in Chromium, and asserts what a person would see, and that no script of others ran."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.look.stores import HOSTILE_TOPIC, MARKUP
from tests.mountctl.served import FIRST_TOKEN, Server

WIDE, PHONE = {"width": 1_200, "height": 820}, {"width": 390, "height": 844}
FORMS = ("", "text", "hex")
LARGEST_PICTURE = 100 << 10
WAIT_MS = 15_000


@dataclass
class Looker:
    """A browser, a server and its mount. Pictures go to `pictures`, if it is there."""

    browser: Any
    server: Server
    mountpoint: Path
    pictures: Path | None

    @contextmanager
    def page(self, expected: str = "status of 40", **options: Any) -> Iterator[Any]:
        """A page in a context of its own. It may not ask for anything elsewhere, nor complain of anything but what is
        `expected`; Chromium notes answers with an error."""
        context = self.browser.new_context(**{"viewport": WIDE, "ignore_https_errors": True, **options})
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        elsewhere: list[str] = []
        said: list[str] = []
        hosts = (f"//127.0.0.1:{self.server.port}/", f"//localhost:{self.server.port}/")
        page.on("request", lambda asked: elsewhere.extend([asked.url] * (not any(host in asked.url for host in hosts))))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        yield page
        assert elsewhere == [], elsewhere
        complaints = [text for text in said if expected not in text]
        assert complaints == [], complaints
        context.close()

    def open(self, page: Any, path: str) -> None:
        """Open a view. It may not have run an attack, nor be wider than the screen."""
        page.goto(self.server.origin + path)
        self.judge(page)

    def judge(self, page: Any) -> None:
        """Of the view that is open, the same."""
        assert page.evaluate("window.owned") is None, page.url
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{page.url} is {wider} pixels too wide"
        assert page.locator("h1").count() == 1

    def picture(self, page: Any, name: str) -> None:
        """Keep what is seen."""
        if self.pictures is None:
            return
        session = page.context.new_cdp_session(page)
        shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": 60})
        content = base64.b64decode(shot["data"])
        assert len(content) <= LARGEST_PICTURE, f"{name}: {len(content):,} bytes"
        (self.pictures / f"page-{name}.webp").write_bytes(content)


def link(view: str, **parameters: object) -> str:
    return f"/page/{view}?{urlencode({name.strip('_'): value for name, value in parameters.items()})}"


def first_page(look: Looker) -> None:
    """Topics, state and groups; RocketMQ's own empty topics only when asked."""
    with look.page(color_scheme="light") as page:
        look.open(page, "/")
        assert page.locator("tbody th a", has_text="orders").count() == 1
        assert page.get_by_text("BenchmarkTest").count() == 0
        look.picture(page, "overview")
        page.get_by_role("link", name="empty ones of RocketMQ").click()
        assert page.get_by_text("BenchmarkTest").count() == 1
        page.get_by_label("Topic", exact=True).fill("pay")
        page.get_by_role("button", name="Find").click()
        assert page.locator("section[aria-labelledby=topics] tbody tr").count() == 1


def a_topic(look: Looker) -> None:
    """Messages and histogram; a bar leads to its time, an error to its place."""
    with look.page(color_scheme="dark") as page:
        look.open(page, link("topic", topic="orders"))
        assert page.locator("tbody [data-row]").count() == 50
        look.picture(page, "topic")
        bars = page.locator(".chart a")
        assert 10 <= bars.count() <= 60
        before = page.locator("figcaption").inner_text()
        bars.nth(bars.count() // 2).click()
        page.wait_for_url("**from=*")
        assert page.locator("figcaption").inner_text() != before
        page.get_by_role("link", name="Wider").click()
        page.get_by_role("link", name="All times").click()
        assert page.locator("figcaption").inner_text() == before
        page.get_by_label("Where").fill("level = 'error' and ms > 500")
        page.get_by_role("button", name="Search").click()
        assert page.locator("tbody [data-row]").count() > 1
        page.get_by_label("Where").fill("level = = 5")
        page.get_by_role("button", name="Search").click()
        assert page.locator("mark").inner_text() == "⟨here⟩"


def a_message(look: Looker) -> None:
    """JSON that folds, neighbours, an image, a long text that is cut."""
    with look.page(color_scheme="light") as page:
        look.open(page, link("message", topic="orders", queue=0, offset=5))
        assert page.locator(".json").get_by_text("level").is_visible()
        look.picture(page, "message")
        page.locator(".json summary").first.click()
        assert not page.locator(".json").get_by_text("level").is_visible()
        page.get_by_role("link", name="Next").click()
        page.wait_for_url("**offset=6")
        page.get_by_role("link", name="text", exact=True).click()
        assert '"level"' in page.locator("pre.body").inner_text()
        look.open(page, link("message", topic="media", queue=0, offset=0))
        assert page.locator("img.body").evaluate("image => image.decode().then(() => image.naturalWidth)") == 96
        look.open(page, link("message", topic="media", queue=0, offset=1))
        assert "The first 64.0 KiB of 3.0 MiB" in page.locator("main").inner_text()


def keys(look: Looker) -> None:
    """All of it by the keyboard."""
    with look.page() as page:
        look.open(page, "/")
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "find"
        page.keyboard.press("Escape")
        for key in "jjk":
            page.keyboard.press(key)
        topic = page.evaluate("document.activeElement.textContent")
        page.keyboard.press("Enter")
        page.wait_for_url("**/page/topic?*")
        assert page.locator("h1").inner_text() == topic
        look.open(page, link("topic", topic="orders"))
        page.keyboard.press("n")
        page.wait_for_url("**before=*")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_url("**/page/message?*")
        here = page.locator("h1").inner_text()
        page.keyboard.press("p")
        page.wait_for_function("here => document.querySelector('h1').textContent !== here", arg=here)
        page.keyboard.press("?")
        assert page.get_by_role("dialog").is_visible()
        page.keyboard.press("Escape")
        assert not page.get_by_role("dialog").is_visible()
        page.keyboard.press("u")
        page.wait_for_url("**/page/topic?topic=orders")
        page.keyboard.press("-")
        page.wait_for_url("**from=*")


def live_tail(look: Looker) -> None:
    """What is published comes on top, without a new page."""
    with look.page() as page:
        look.open(page, link("topic", topic="payments"))
        page.keyboard.press("l")
        page.wait_for_url("**live=1")
        page.evaluate("window.same = true")
        for number in range(3):
            with (look.mountpoint / "payments/2/append").open("wb", 0) as file:
                file.write(b'{"order": %d, "state": "live <b>now</b>"}\n' % number)
            page.locator("tbody tr:first-child td.body", has_text=f'"order": {number}').wait_for()
        assert page.locator("tbody b").count() == 0
        assert page.evaluate("window.same") is True
        page.keyboard.press("l")
        page.wait_for_function("!document.querySelector('[data-live]')")


def hostile(look: Looker) -> None:
    """No name, key, property or body of a publisher runs or is drawn as markup."""
    views = [
        "/?find=" + quote(MARKUP),
        link("topic", topic="hostile"),
        link("topic", topic="hostile", key=MARKUP, text=MARKUP, where=f"'{MARKUP}", from_=MARKUP),
        link("topic", topic=HOSTILE_TOPIC),
        link("parquet", topic=HOSTILE_TOPIC),
        link("topic", topic=MARKUP),
        "/page/fleet",
        link("fleet/topic", topic="hostile", key=MARKUP, where=f"'{MARKUP}"),
        link("fleet/topic", topic="hostile"),
        link("fleet/topic", topic=HOSTILE_TOPIC),
        *(link("message", topic="hostile", queue=0, offset=at, as_=form) for at in range(4) for form in FORMS),
    ]
    with look.page() as page:
        for view in views:
            look.open(page, view)
            assert page.locator("main script, main style, main base, main svg:not(.chart), main b").count() == 0, view
            assert page.evaluate("getComputedStyle(document.body).display") != "none"
            assert page.locator("img:not(.body)").count() == 0, view
        look.open(page, link("topic", topic="hostile"))
        page.locator("tbody [data-row]").first.click()
        look.judge(page)
    with look.page("Executing inline script violates") as page:  # even if one was drawn, the policy would stop it
        look.open(page, "/")
        blocked = page.evaluate(
            """() => new Promise(done => {
                document.addEventListener("securitypolicyviolation", event => done(event.violatedDirective));
                const script = document.createElement("script");
                script.textContent = "window.owned = 2";
                document.body.append(script);
                setTimeout(() => done("nothing"), 2000);
            })"""
        )
        assert blocked.startswith("script-src"), blocked
        assert page.evaluate("window.owned") is None


def several_brokers(look: Looker) -> None:
    """Topics of all brokers, and the messages of one, with the broker of each."""
    with look.page(color_scheme="light") as page:
        look.open(page, "/")
        page.get_by_role("link", name="@shop").click()
        look.judge(page)
        assert page.get_by_role("alert").count() == 0
        assert page.locator("section[aria-labelledby=brokers] tbody tr").count() == 2
        page.get_by_label("Topic", exact=True).fill("orders")
        page.get_by_role("button", name="Find").click()
        assert page.locator("section[aria-labelledby=topics] tbody tr").count() == 2
        page.locator("section[aria-labelledby=topics] [data-row]").first.click()
        look.judge(page)
        assert page.locator("tbody [data-row]").count() == 50
        assert set(page.locator("td[data-title=Broker]").all_inner_texts()) == {"broker-a", "broker-b"}
        look.picture(page, "fleet")
        page.keyboard.press("n")
        page.wait_for_url("**older=*")
        page.get_by_label("Broker", exact=True).select_option("broker-b")
        page.get_by_role("button", name="Search").click()
        assert set(page.locator("td[data-title=Broker]").all_inner_texts()) == {"broker-b"}
        page.locator(".chart a").nth(20).click()
        page.wait_for_url("**broker=broker-b*")


def phone(look: Looker) -> None:
    """No view is wider than a phone."""
    with look.page(viewport=PHONE, color_scheme="dark", device_scale_factor=1) as page:
        for view in ("/", "/page/fleet", link("fleet/topic", topic="hostile"), link("topic", topic="hostile"),
                     link("message", topic="orders", queue=0, offset=5),
                     link("message", topic="hostile", queue=0, offset=0), link("parquet", topic="orders")):  # fmt: skip
            look.open(page, view)
        look.open(page, link("topic", topic="payments"))
        look.picture(page, "phone")


def without_script(look: Looker) -> None:
    """Links and forms work without JavaScript."""
    with look.page(java_script_enabled=False) as page:
        page.goto(look.server.origin + "/")
        page.get_by_role("link", name="orders").first.click()
        page.get_by_label("Text in the body").fill('"level": "error"')
        page.get_by_role("button", name="Search").click()
        assert page.locator("tbody [data-row]").count() > 1
        page.get_by_role("link", name="Older").click()
        page.locator("tbody [data-row]").first.click()
        assert page.locator("#place").count() == 1


def tokens(look: Looker) -> None:
    """The form takes a token once, the cookie is out of reach of scripts, and a logout ends it."""
    with look.page(extra_http_headers={"Authorization": "Bearer none"}) as page:
        page.goto(look.server.origin + link("topic", topic="payments"))
        page.context.set_extra_http_headers({})
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Open the page").click()
        assert "not valid" in page.get_by_role("alert").inner_text()
        page.get_by_label("Token").fill(FIRST_TOKEN)
        page.get_by_role("button", name="Open the page").click()
        page.get_by_role("button", name="Log out").wait_for()
        [cookie] = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", True)
        assert FIRST_TOKEN not in cookie["value"] + page.url
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/")
        assert page.context.cookies() == []


def from_elsewhere(look: Looker) -> None:
    """A link of another site waits for a click."""
    with look.page() as page:
        page.goto(look.server.origin.replace("127.0.0.1", "localhost") + "/")
        target = look.server.origin + link("topic", topic="payments")
        page.evaluate("target => { location.href = target }", target)
        page.wait_for_url("**127.0.0.1**")
        assert page.locator("h1").inner_text() == "A link from another site"
        page.locator("a.button").click()
        page.locator("tbody [data-row]").first.wait_for()


_ALL = (
    *(first_page, a_topic, a_message, keys, live_tail, hostile, several_brokers, phone, without_script, tokens),
    from_elsewhere,
)
LOOKS = {look.__name__: look for look in _ALL}
