"""Each verb on an unmounted store and on a mounted one: the person need not know which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine import Message, MessageStore, RecoveryReport, StoreConfig
from mountctl.client import MessageRow
from mountctl.local_store import LocalStore
from mountctl.main import VERBS, cli
from mountctl.showing import Printer
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, fill, mountctl, site_in, succeed, tree


@pytest.fixture(params=["unmounted", "mounted"])
def place(request: pytest.FixtureRequest, site: Site) -> Path:
    """The same ten messages, reached either way."""
    fill(site.store)
    return site.mounted().mountpoint if request.param == "mounted" else site.store


@pytest.fixture(scope="module")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A store with ten messages, mounted, for tests that change nothing there."""
    for site in site_in(tmp_path_factory.mktemp("shared")):
        fill(site.store)
        yield site.mounted()


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, not mounted."""
    path = tmp_path_factory.mktemp("shared").resolve() / "store"
    fill(path)
    return path


@pytest.fixture(params=["unmounted", "mounted"])
def unchanged(request: pytest.FixtureRequest, shared_site: Site, shared_store: Path) -> Path:
    """As `place`, for tests that change nothing there."""
    return shared_site.mountpoint if request.param == "mounted" else shared_store


def test_cat_prints_bodies_from_an_offset_on(unchanged: Path) -> None:
    assert succeed("cat", unchanged, "orders/0", "--from", "7") == "order 7\norder 8\norder 9\n"
    assert succeed("cat", unchanged, "orders", "--count", "2") == "order 0\norder 1\n"
    assert succeed("cat", unchanged, "orders/0/4") == "order 4"
    assert succeed("cat", unchanged, "orders", "--key", "ORDER-3") == "order 3\n"
    assert succeed("cat", unchanged, "orders/0", "--from", "2999-01-01") == ""
    assert succeed("cat", unchanged, "orders/0", "--from", "@0", "--count", "1") == "order 0\n"


def test_cat_json_tells_all_that_is_known(unchanged: Path) -> None:
    shown = json.loads(succeed("cat", unchanged, "orders/0/4", "--json"))
    assert (shown["topic"], shown["queue"], shown["offset"], shown["body"]) == ("orders", 0, 4, "order 4")
    assert (shown["keys"], shown["tags"]) == ("ORDER-4", "paid")
    assert shown["properties"] == {"KEYS": "ORDER-4", "TAGS": "paid"}
    assert shown["store_size"] > len("order 4")
    assert len(shown["msg_id"]) == 32


def test_tail_prints_the_newest_of_all_queues_in_order(place: Path) -> None:
    assert succeed("tail", place, "orders/0", "-n", "2") == "order 8\norder 9\n"
    assert succeed("tail", place, "orders", "-n", "0") == ""
    for number in range(6):
        succeed(
            "put", place, f"orders/{5 - number if number > 2 else number}", f"new {number}", "--tag", f"t{number % 2}"
        )
    assert succeed("tail", place, "orders", "-n", "7").split("\n")[:-1] == ["order 9", *(f"new {n}" for n in range(6))]
    assert succeed("tail", place, "ord*", "-n", "2", "--tag", "t0") == "new 2\nnew 4\n"
    assert succeed("tail", place, "orders/0", "-n", "1", "--tag", "paid") == "order 9\n"


def test_messages_are_chosen_by_time_tag_key_and_glob(place: Path) -> None:
    succeed("put", place, "invoices/1", "first", "--key", "K", "--tag", "due")
    succeed("put", place, "invoices/0", "second", "third", "--key", "K", "--key", "L")
    assert succeed("cat", place, "invoices", "--key", "K") == "first\nsecond\nthird\n"
    assert succeed("cat", place, "invoices/0", "--key", "K", "-n", "1") == "second\n"
    assert succeed("cat", place, "invoices", "--key", "K", "--tag", "due") == "first\n"
    assert succeed("cat", place, "invoices", "--tag", "due", "--tag", "none") == "first\n"
    assert succeed("cat", place, "inv*", "ord*/0", "--from", "8") == "order 8\norder 9\n"
    assert succeed("cat", place, "orders/0", "--from", "3", "--until", "5") == "order 3\norder 4\n"
    assert succeed("cat", place, "*", "--until", "-1h") == ""
    assert len(succeed("cat", place, "*", "--from", "-1d12h").splitlines()) == 13
    second = json.loads(succeed("cat", place, "invoices/0/0", "--json"))
    since = f"@{second['store_time']}"
    assert succeed("cat", place, "invoices/0", "--from", since) == "second\nthird\n"
    assert succeed("cat", place, "invoices/0", "--until", since) == ""
    for words, code, said in (
        (["nosuch*"], 64, "no topic matches 'nosuch*': there are: invoices, orders"),
        (["invoices", "--key", "NONE"], 66, "no message of invoices has the key 'NONE'"),
        (["invoices", "--from", "@abc"], 64, "invalid time '@abc': give 2026-01-31T09:30, @EPOCH_MS, or"),
        (["invoices", "orders/0/1"], 64, "one OFFSET stands alone"),
    ):
        refused = mountctl("cat", place, *words)
        assert (refused.returncode, refused.stdout) == (code, "")
        assert said in refused.stderr


def test_a_format_of_ones_own_is_printed_for_each_message(place: Path) -> None:
    succeed("put", place, "orders/1", "größe", "--key", "K", "--key", "L", "--tag", "t", "--property", "A=b c")
    shown = json.loads(succeed("cat", place, "orders/1/0", "--json"))
    assert succeed("cat", place, "orders/1", "--format", "%t %q %o %S %k %g %b") == "orders 1 0 7 K L t größe\n"
    assert succeed("cat", place, "orders/1/0", "--format", "%{A}|%{B}|%T") == f"b c||{shown['store_time']}\n"
    assert succeed("cat", place, "orders/1", "--format", "%%\\t%o\\x41\\0") == "%\t0A\0"
    assert succeed("tail", place, "orders/1", "--format", "%m\\n") == f"{shown['msg_id']}\n"
    properties = succeed("cat", place, "orders/1", "--format", "%h").strip().split(",")
    assert properties == ["KEYS=K L", "TAGS=t", "A=b c"]
    for template, said in (
        ("%z", "no %z: there are %t %q"),
        ("%", "no %: there are"),
        ("\\q", "no \\q: there are \\n"),
    ):
        refused = mountctl("cat", place, "orders", "--format", template)
        assert refused.returncode == 64
        assert said in refused.stderr


def test_put_says_where_each_message_is_and_takes_what_append_takes(place: Path) -> None:
    assert succeed("put", "-v", place, "orders/1", "a", "b", "--property", "A=b") == "orders/1/0\norders/1/1\n"
    lines = '{"id": "I-1", "x": 1}\n\n{"id": 7}\n{"id": null}\n'
    said = succeed("put", place, "orders/2", "--json", "--key-from", "id", stdin=lines)
    assert [json.loads(line) for line in said.splitlines()] == [
        {"topic": "orders", "queue": 2, "offset": offset} for offset in range(3)
    ]
    assert succeed("cat", place, "orders/2", "--format", "%o %k %b") == (
        '0 I-1 {"id": "I-1", "x": 1}\n1 7 {"id": 7}\n2  {"id": null}\n'
    )
    records = '{"body": "one", "keys": ["K"], "properties": {"P": "q"}}\n{"body_base64": "/wA=", "tags": "own"}\n'
    succeed("put", place, "orders/3", "--format", "json", "--tag", "t", "--property", "P=p", stdin=records)
    shown = [json.loads(line) for line in succeed("cat", place, "orders/3", "--json").splitlines()]
    assert [(one.get("body"), one.get("keys"), one["tags"], one["properties"]["P"]) for one in shown] == [
        ("one", "K", "t", "q"),
        (None, None, "own", "p"),
    ]
    delayed = json.loads(succeed("put", place, "orders", "later", "--delay-level", "3", "--json"))
    assert (delayed["topic"], delayed["queue"]) == ("SCHEDULE_TOPIC_XXXX", 2)
    for words, stdin, code, said in (
        (["--format", "json"], '{"body": "x"}\n{"bdy": 1}\n', 65, "illegal message: number 2: unknown field 'bdy'"),
        (["--key-from", "id"], "{}\nnone\n", 65, "illegal message: number 2: is not JSON"),
        (["--key-from", "id"], '{"id": {}}\n', 65, "number 1: its key is neither a text nor a number"),
        (["x", "--property", "A"], "", 64, "invalid property 'A': give NAME=VALUE"),
        (["x", "--key", "k", "--key-from", "id"], "", 64, "--key and --key-from exclude each other"),
        (["good", "x" * 10, "--key-from", "id"], "", 65, "number 1: is not JSON"),
        (["--key-from", "id"], '{"id": 1}\n{"id": "a b"}\n', 65, "number 2: keys are a list of texts"),
        (["-v"], "b" * (5 << 20), 65, "number 1: body of 5,242,880 bytes is over the limit of 4,194,304"),
    ):
        refused = mountctl("put", place, "letters", *words, stdin=stdin)
        assert (refused.returncode, refused.stdout) == (code, "")
        assert said in refused.stderr
    assert "letters" not in succeed("topics", place)


def test_put_takes_a_path_below_a_place(place: Path) -> None:
    """People write what they see: its topic is not made of the first message."""
    succeed("put", f"{place}/letters", "hello", "again")
    succeed("put", f"{place}/letters/1", stdin="a line\n")
    assert sorted(succeed("cat", place, "letters").splitlines()) == ["a line", "again", "hello"]
    assert succeed("cat", place, "letters/1").splitlines()[-1] == "a line"
    assert "hello" not in succeed("topics", place)
    refused = mountctl("put", place)
    assert (refused.returncode, refused.stderr) == (
        2,
        "mountctl: missing argument 'TOPIC[/QUEUE]': see `mountctl put --help`\n",
    )


def test_put_says_how_many_messages_had_no_key(place: Path) -> None:
    put = mountctl("put", place, "orders", "--key-from", "id", stdin='{"id": 1}\n{}\n{"id": null}\n{"id": []}\n')
    assert put.stderr == "mountctl: 3 of 4 messages have no 'id', and so no key\n"
    assert mountctl("put", place, "orders", '{"id": [1, "b"]}', "--key-from", "id").stderr == ""
    assert succeed("cat", place, "orders", "--key", "b", "--format", "%k") == "1 b\n"


def test_put_publishes_arguments_files_and_lines(place: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_bytes(b"two\nlines\n")
    succeed("put", place, "orders/1", "a, b + c", "--key", "a+b%", "--key", "c@d", "--tag", "t,u")
    succeed("put", place, "orders/1", "--file", tmp_path / "letter")
    succeed("put", place, "orders/1", stdin="x\n\ny\nlast without a newline")
    shown = [json.loads(line) for line in succeed("cat", place, "orders/1", "--json").splitlines()]
    assert [message["body"] for message in shown] == ["a, b + c", "two\nlines\n", "x", "y", "last without a newline"]
    assert (shown[0]["keys"], shown[0]["tags"]) == ("a+b% c@d", "t,u")
    assert succeed("cat", place, "orders", "--key", "a+b%") == "a, b + c\n"


def published(place: Path, target: str) -> list[str]:
    """The bodies there, in queue order."""
    return [json.loads(line)["body"] for line in succeed("cat", place, target, "--json").splitlines()]


def test_put_publishes_standard_input_whole_for_a_dash(place: Path, tmp_path: Path) -> None:
    succeed("put", place, "orders/1", "before", "-", "after", stdin="two\n\nlines")
    (tmp_path / "dash").write_bytes(b"-")
    succeed("put", place, "orders/1", "--file", tmp_path / "dash")
    succeed("put", place, "orders/1", stdin="-\n")
    assert published(place, "orders/1") == ["before", "two\n\nlines", "after", "-", "-"]
    refused = mountctl("put", place, "orders/1", "-", "-", stdin="x")
    assert (refused.returncode, refused.stderr) == (64, "mountctl: standard input can be read once: give '-' once\n")


def test_put_publishes_empty_messages(place: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    succeed("put", place, "orders/1", "")
    succeed("put", place, "orders/1", "a", "", "b", "--file", tmp_path / "empty", "--key", "K", "--tag", "t")
    assert published(place, "orders/1") == ["", "a", "", "b", ""]
    assert json.loads(succeed("cat", place, "orders/1/2", "--json"))["keys"] == "K"


def test_put_publishes_every_byte_up_to_the_limit(place: Path, tmp_path: Path) -> None:
    body = bytes(range(256)) * (4 << 12)
    (tmp_path / "body").write_bytes(body)
    succeed("put", place, "orders/1", "--file", tmp_path / "body", "--key", "größe+%,@/", "--key", "x" * 300)
    with subprocess.Popen(
        [sys.executable, "-m", "mountctl", "cat", str(place), "orders/1/0"], stdout=subprocess.PIPE
    ) as cat:
        assert cat.communicate(timeout=DEADLINE_SECONDS)[0] == body
    shown = json.loads(succeed("cat", place, "orders/1/0", "--json"))
    assert shown["keys"] == "größe+%,@/ " + "x" * 300
    with (tmp_path / "body").open("ab") as grown:
        grown.write(b"!")
    refused = mountctl("put", place, "orders/1", "--file", tmp_path / "body")
    assert refused.returncode == 65
    assert "body is over the limit of 4,194,304 bytes for a message" in refused.stderr
    assert len(succeed("cat", place, "orders/1", "--json").splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (["orders", "x", "--key", "a b"], "", 65, "illegal message: keys are a list of texts that are not empty"),
        (["orders", "x", "--key", ""], "", 65, "illegal message: keys are a list of texts that are not empty"),
        (["orders", "x", "--tag", "a\x01b"], "", 65, "illegal message: a property has no name, or holds the"),
        (["orders", "x", "--key", "k" * 40_000], "", 65, "properties of 40,005 bytes is over the limit of 32,767"),
        (["orders", "--key", "a b"], "x\n", 65, "illegal message: keys are a list of texts that are not empty"),
        (["orders", "x", "--property", "DELAY=x"], "", 65, "illegal message: DELAY is 'x', which is no delay level"),
        (["orders/9", "x"], "", 64, "topic 'orders' has no queue 9"),
        (["or ders", "x"], "", 65, "illegal message: topic 'or ders'"),
        (["orders"], "x" * ((4 << 20) + 1), 65, "over the limit of 4,194,304"),
    ],
)
def test_put_says_why_it_refuses_in_the_same_words(
    unchanged: Path, arguments: list[str], stdin: str, code: int, words: str
) -> None:
    refused = mountctl("put", unchanged, *arguments, stdin=stdin)
    assert refused.returncode == code, refused.stderr
    assert words in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert succeed("topics", unchanged).splitlines()[1].split() == ["orders", "4", "10"]


def test_a_topic_with_an_illegal_name_is_refused_in_the_same_words(unchanged: Path) -> None:
    refused = mountctl("topics", "create", unchanged, "a/b")
    assert (refused.returncode, refused.stderr.partition(" has ")[0].partition(":")[0]) == (64, "mountctl")
    assert "illegal topic 'a/b': " in refused.stderr


def test_put_makes_an_unknown_topic_with_four_queues_and_says_so(place: Path) -> None:
    for stderr in ("mountctl: there is no topic 'letters' yet: the first message makes it\n", ""):
        put = mountctl("put", place, "letters", "hello")
        assert (put.returncode, put.stdout, put.stderr) == (0, "", stderr)
    listed = json.loads(succeed("topics", place, "--json"))
    assert list(listed) == ["letters", "orders"]
    assert list(listed["letters"]) == ["0", "1", "2", "3"]
    assert sum(queue["max_offset"] for queue in listed["letters"].values()) == 2
    slip = mountctl("put", place, "ordres", "hello")
    assert slip.stderr.endswith("(did you mean orders?)\n")
    refused = mountctl("put", place, "wide/4", "hello")
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (64, "mountctl: no topic 'wide'")
    assert "wide" not in succeed("topics", place)


def test_topics_are_listed_made_and_deleted_after_a_question(place: Path) -> None:
    assert succeed("topics", place).splitlines()[1].split() == ["orders", "4", "10"]
    succeed("topics", "create", place, "wide", "--queues", "8")
    succeed("topics", "create", place, "narrow", "--queues", "1")
    listed = json.loads(succeed("topics", "list", place, "--json"))
    assert {name: len(queues) for name, queues in listed.items()} == {"narrow": 1, "orders": 4, "wide": 8}
    for answer in ("n\n", " "):
        refused = mountctl("topics", "delete", place, "orders", stdin=answer)
        assert (refused.returncode, refused.stderr) == (
            130,
            "mountctl: orders is not deleted: answer y, or say --yes\n",
        )
        assert "10 messages" in refused.stdout
    succeed("topics", "delete", place, "orders", stdin="y\n")
    succeed("topics", "delete", place, "wide", "--yes")
    assert list(json.loads(succeed("topics", place, "--json"))) == ["narrow"]


def test_what_is_not_there_is_said_with_what_is(unchanged: Path) -> None:
    unknown = mountctl("cat", unchanged, "nosuch")
    assert (unknown.returncode, unknown.stderr) == (64, "mountctl: no topic 'nosuch': there are: orders\n")
    for words in (("wait", unchanged, "ord*"), ("topics", "delete", unchanged, "ord*", "--yes")):
        assert mountctl(*words).stderr == "mountctl: no topic 'ord*': there are: orders\n", "it is no glob"
    assert "no queue 9" in mountctl("cat", unchanged, "orders/9").stderr
    assert "it holds 0 to 9" in mountctl("cat", unchanged, "orders/0/10").stderr
    assert "no message of orders has the key" in mountctl("cat", unchanged, "orders", "--key", "ORDER").stderr
    exists = mountctl("topics", "create", unchanged, "orders")
    assert (exists.returncode, exists.stderr) == (64, "mountctl: topic 'orders' exists\n")


def test_status_tells_figures_topics_and_lag(place: Path, site: Site) -> None:
    status = json.loads(succeed("status", place, "--json"))
    assert status["store"] == str(site.store)
    assert status["stats"]["messages"] == 10
    assert status["topics"]["orders"]["queues"]["0"] == {"min_offset": 0, "max_offset": 10}
    words = succeed("status", place)
    assert "10 in 1 topic, 4 queues" in words
    assert f"store      {site.store}" in words
    assert ("access     write" in words.splitlines()) == (place == site.mountpoint)
    assert "opened read-only" not in words  # this verb alone did so


def test_status_shows_how_far_consumers_lag(store: Path) -> None:
    offsets = '{\n\t"offsetTable":{\n\t\t"orders@billing":{0:7\n\t\t}\n\t}\n}'
    (store / "config/consumerOffset.json").write_text(offsets)
    assert json.loads(succeed("status", store, "--json"))["groups"] == {
        "billing": {"orders": {"0": {"offset": 7, "lag": 3, "expired": 0}}}
    }
    assert succeed("status", store).splitlines()[-1].split() == ["billing", "orders", "0", "7", "3", "0"]


def test_status_leaves_out_empty_topics_of_rocketmqs_own_unless_asked(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "broker", create=True) as store:
        store.create_topics({"TBW102": 8, "BenchmarkTest": 2, "orders": 1})
        store.put(Message("SELF_TEST_TOPIC", b"it has a message"))
    words, all_of_it = succeed("status", tmp_path / "broker"), succeed("status", tmp_path / "broker", "--all")
    assert [name in words for name in ("TBW102", "BenchmarkTest", "orders", "SELF_TEST_TOPIC")] == [
        False,
        False,
        True,
        True,
    ]
    assert words.endswith("\n2 empty topics of RocketMQ's own: --all lists them\n")
    assert "TBW102" in all_of_it
    assert "--all" not in all_of_it
    assert len(json.loads(succeed("status", tmp_path / "broker", "--json"))["topics"]) == 4


def test_status_has_a_line_for_each_figure_that_should_be_0(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = MessageStore.stats
    found: dict[str, Any] = {
        "damaged_places": 1,
        "refused_pages": 2,
        "ignored_errors": 3,
        "last_ignored_error": "a {page}",
    }
    recovery = RecoveryReport(damaged=(7, 8))
    monkeypatch.setattr(MessageStore, "stats", lambda *of: replace(stats(*of), recovery=recovery, **found))
    lines = CliRunner().invoke(cli, ["status", str(store)]).output.split("\n\n")[0].splitlines()
    assert lines[-4:] == [
        "damage     2 places in the log can't be read (mountctl check)",
        "unreadable 1 place in the log, found by readers since the opening",
        "refused    2 reads by the disk: mountctl check tells where",
        "ignored    3 errors of the disk, last: a {page}",
    ]


def test_status_without_a_place_lists_what_is_mounted(site: Site) -> None:
    site.mounted()
    listed = {mount["mountpoint"]: mount for mount in json.loads(succeed("status", "--json"))}
    assert listed[str(site.mountpoint)]["store"] == str(site.store)
    assert listed[str(site.mountpoint)]["read_only"] is False
    assert str(site.mountpoint) in succeed("status")


def test_reading_verbs_change_no_byte_of_an_unmounted_store(store: Path) -> None:
    before = tree(store)
    for arguments in (["status"], ["topics"], ["cat", "orders"], ["tail", "orders"], ["check"]):
        verb, *rest = arguments
        succeed(verb, store, *rest)
    assert tree(store) == before


@pytest.mark.parametrize("reached", ["store", "mountpoint"])
def test_tail_f_shows_what_is_published_while_it_runs(site: Site, reached: str) -> None:
    site.mounted()
    succeed("put", site.store, "orders/0", "first")
    command = [sys.executable, "-m", "mountctl", "tail", "-f", str(getattr(site, reached)), "orders"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as tail:
        assert tail.stdout is not None
        try:
            assert tail.stdout.readline() == "first\n"
            (site.mountpoint / "orders/0/append").write_text("second\n")
            assert tail.stdout.readline() == "second\n"
            succeed("umount", site.mountpoint)
            succeed("put", site.store, "orders/1", "third")
            assert tail.stdout.readline() == "third\n"
            site.mounted()
            succeed("put", site.mountpoint, "orders/2", "fourth")
            assert tail.stdout.readline() == "fourth\n"
        finally:
            tail.terminate()


def test_init_makes_a_store_of_the_sizes_asked_for(tmp_path: Path) -> None:
    made = json.loads(succeed("init", tmp_path / "broker", "--sizes", "broker", "--json"))
    assert (made["commit_log_bytes"], made["index_slots"]) == (1 << 30, 5_000_000)
    assert json.loads(succeed("status", tmp_path / "broker", "--json"))["stats"]["commit_log_file_bytes"] == 1 << 30
    assert mountctl("init", tmp_path / "broker").stderr.endswith("is not empty: name a new or empty directory\n")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_store_is_its_owners_alone_unless_asked_otherwise(tmp_path: Path) -> None:
    succeed("init", tmp_path / "own")
    succeed("init", tmp_path / "group", "--mode", "0750")
    (tmp_path / "there").mkdir(mode=0o755)
    succeed("init", tmp_path / "there")
    assert [mode_of(tmp_path / name) for name in ("own", "group", "there")] == [0o700, 0o750, 0o755]
    (tmp_path / "own").chmod(0o711)
    succeed("put", tmp_path / "own", "orders", "x")
    assert mode_of(tmp_path / "own") == 0o711
    fill(tmp_path / "deep/engine")
    assert mode_of(tmp_path / "deep/engine") == 0o700
    assert "invalid file mode" in mountctl("init", tmp_path / "odd", "--mode", "rwx").stderr
    assert not (tmp_path / "odd").exists()


def test_check_prints_a_line_a_finding_and_repair_mends_what_is_derived(store: Path) -> None:
    assert succeed("check", store).endswith(": no findings\n")
    entries = store / "consumequeue/orders/0/00000000000000000000"
    content = bytearray(entries.read_bytes())
    content[20 * 3 + 7] ^= 0x40  # the physical offset of entry 3
    entries.write_bytes(content)
    found = mountctl("check", store)
    assert found.returncode == 1
    assert "consumequeue/orders/0" in found.stdout
    findings = [json.loads(line) for line in mountctl("check", store, "--json").stdout.splitlines()]
    assert len(findings) == len(found.stdout.splitlines())
    assert {"kind", "path", "position", "text"} == set(findings[0])
    repaired = succeed("check", store, "--repair")
    assert "repaired: " in repaired
    assert repaired.endswith(": no findings\n")
    assert succeed("cat", store, "orders/0/3") == "order 3"


def test_repair_asks_for_a_store_that_is_at_rest(site: Site) -> None:
    site.mounted()
    refused = mountctl("check", "--repair", site.mountpoint)
    assert refused.returncode == 75
    assert f"mountctl umount {site.mountpoint}" in refused.stderr


def test_a_reader_that_went_away_is_no_error(store: Path) -> None:
    succeed("put", store, "long", stdin="a line\n" * 50_000)
    command = f"{sys.executable} -m mountctl cat {store} long | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a line\n", b"")


@pytest.mark.parametrize("verb", ["cat {} orders", "topics {}", "put {} orders -v x", "put {} orders <&-", "status {}"])
def test_a_stream_that_is_closed_is_an_error_in_one_line(place: Path, verb: str) -> None:
    command = f"{sys.executable} -m mountctl {verb.format(place)} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (74, "mountctl: Bad file descriptor\n")
    unheard = subprocess.run(["sh", "-c", f"{command} 2>&-"], timeout=DEADLINE_SECONDS, check=False)
    assert unheard.returncode == 74


def test_an_empty_directory_may_be_a_mount_point_where_nothing_is_mounted(tmp_path: Path) -> None:
    refused = mountctl("cat", tmp_path, "orders")
    assert refused.returncode == 66
    assert f"nothing is mounted at {tmp_path}" in refused.stderr
    assert f"mountctl mount STORE {tmp_path}" in refused.stderr
    assert "init" not in refused.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["unmount"], "there is no verb 'unmount' (did you mean umount?): see `mountctl --help`"),
        (["chek"], "there is no verb 'chek' (did you mean check?): see `mountctl --help`"),
        (["help", "ls"], "there is no verb 'ls' (did you mean topics?): see `mountctl --help`"),
        (["delete"], "there is no verb 'delete' (did you mean topics?): see `mountctl --help`"),
        (["mv"], "there is no verb 'mv' (did you mean copy?): see `mountctl --help`"),
        (["version"], "there is no verb 'version' (did you mean --version?): see `mountctl --help`"),
        (["xyzzy"], "there is no verb 'xyzzy': see `mountctl --help`"),
        (["cat", "--jsn"], "there is no option --jsn (did you mean --json?): see `mountctl cat --help`"),
        (["cat"], "missing argument 'PLACE': see `mountctl cat --help`"),
        (
            ["umount", "mq", "store"],
            "got unexpected extra argument (store); the order is `mountctl umount MOUNTPOINT`:"
            " see `mountctl umount --help`",
        ),
    ],
)
def test_what_is_not_understood_is_one_line_with_a_guess(words: list[str], said: str) -> None:
    refused = mountctl(*words)
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", f"mountctl: {said}\n")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_speaks_in_one_voice(verb: str) -> None:
    refused = mountctl(verb, "--zzzz")
    assert refused.returncode == 2
    assert refused.stderr == f"mountctl: there is no option --zzzz: see `mountctl {verb} --help`\n"


def test_help_and_version_are_words_too() -> None:
    assert succeed("help", "topics", "create") == succeed("topics", "create", "--help")
    assert succeed("help") == succeed("--help")
    assert succeed("-V") == succeed("--version")
    for package in ("mountctl", "fsstore"):
        command = [sys.executable, "-m", package, "-V"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == succeed("-V")


def test_ctrl_c_while_the_command_is_loaded_is_no_traceback() -> None:
    code = (
        "import os, signal, sys, threading; from mountctl.__main__ import start; import importlib;"
        "importlib.import_module = lambda name: os.kill(os.getpid(), signal.SIGINT) or sys.exit('not ended');"
        "sys.argv = ['mountctl', 'cat']; start()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-2, "")


def test_mount_carries_no_engine_into_its_fork() -> None:
    code = "import sys, mountctl.main, mountctl.verbs.mount; print({'engine', 'numpy', 'pyfuse3'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    words = succeed(verb, "--help")
    assert f"  mountctl {verb}" in words.partition("Example")[2]


def test_tail_from_a_time_prints_as_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MessageStore.open(tmp_path / "store", create=True) as store:
        for number in range(100):
            store.put(Message("orders", b"%d" % number))
    events: list[str] = []
    read, line = LocalStore.messages, Printer.line

    def reading(*arguments: Any) -> Iterator[MessageRow]:
        for message in read(*arguments):
            events.append("read")
            yield message

    def printing(printer: Printer, message: MessageRow) -> None:
        events.append("printed")
        line(printer, message)

    monkeypatch.setattr(LocalStore, "messages", reading)
    monkeypatch.setattr(Printer, "line", printing)
    shown = succeed("tail", tmp_path / "store", "orders", "--from", "-1h").splitlines()
    assert shown == [str(number) for number in range(100)]
    assert events.index("printed") < 10 < events.count("read")


def test_messages_of_two_stores_are_put_together_by_store_time_store_and_physical_offset(tmp_path: Path) -> None:
    puts = {"a": ("a0", "a3", "a1", "later a1"), "b": ("b2", "b0", "b2", "later b1")}
    for name, bodies in puts.items():
        times = iter([1_000, 1_000, 1_001, 5_000] if name == "a" else [2_000, 2_000, 2_000, 5_000])
        now = next(times)
        with MessageStore.open(tmp_path / name, StoreConfig(clock=lambda: now), create=True) as store:  # noqa: B023
            for body in bodies:
                store.put(Message("orders", body.encode()), int(body[-1]))
                now = next(times, now)
    tails = [f"<(mountctl tail {tmp_path / name} orders --from 0 --format '%T {name} %b')" for name in ("b", "a")]
    done = subprocess.run(
        ["bash", "-c", f"sort -n -s -m -k1,1 {' '.join(tails)}"],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.split(" ", 2)[2] for line in done.stdout.splitlines()] == [
        *("a0", "a3", "a1"),
        *("b2", "b0", "b2"),
        *("later b1", "later a1"),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("help", "cat"),
        ("topics", "{store}"),
        ("cat", "{store}", "orders"),
        ("cat", "{store}", "orders/0/0", "--json"),
        ("grep", "{store}", "order"),
    ],
    ids=" ".join,
)
def test_output_that_can_not_be_written_is_an_error_in_one_line(store: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "mountctl", *(word.format(store=store) for word in words)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=buffered, text=True, check=False)
    assert (done.returncode, done.stderr) == (74, "mountctl: No space left on device\n")
