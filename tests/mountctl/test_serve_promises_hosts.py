"""docs/fleet.md, 6: the verbs that read several hosts, over a real ssh."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from engine import Message, MessageStore
from mountctl.errors import FINDINGS, INTERRUPTED
from mountctl.hosts import NO_ANSWER
from mountctl.main import VERBS
from tests.mountctl.conftest import DEADLINE_SECONDS, eventually, mountctl, site_in
from tests.mountctl.sshd import Network, network

HOSTILE = "it's; touch '$HOME/gone' \"`id`\"\n& 'x"
"""A folder's name that no shell takes as it stands."""


class Site(NamedTuple):
    """Two hosts with a store each."""

    hosts: Network
    stores: Path

    @property
    def a(self) -> str:
        return f"a:{self.stores / 'a'}"

    @property
    def b(self) -> str:
        return f"b:{self.stores / 'b'}"


def put(store: Path, topic: str, *bodies: bytes, queue: int = 0) -> None:
    with MessageStore.open(store) as opened:
        for body in bodies:
            opened.put(Message(topic, body, keys=["ORDER-7"], tags="paid"), queue=queue)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """`orders` of a and b by turns, six messages; `bills` only at a."""
    folder = tmp_path_factory.mktemp("hosts").resolve()
    made = Site(network(folder), folder)
    for name in ("a", "b"):
        MessageStore.open(folder / name, create=True).close()
    for number in range(6):
        put(folder / "ab"[number % 2], "orders", b"order %d" % number, queue=number % 3)
    put(folder / "a", "bills", b"bill\n\xff\x1b[31m")
    toml = f'[both]\nleft = "{made.a}"\nright = {{ ssh = "{made.b}" }}\n[web]\nfar = "http://x:9870"\n'
    (made.hosts.home / ".config/fsstore/fleet.toml").write_text(toml)
    return made


def test_places_of_several_hosts_are_read_as_one(site: Site) -> None:
    """6.1 `cat`, `tail`, `grep`, `topics`, `status` and `top` take several places, before the topics. A place is
    HOST:PLACE, by the user's own ssh, or `@GROUP` of `~/.config/fsstore/fleet.toml`. Beside these, a path of this
    host may be a place; it begins with `/` or `./`. Messages come in the order of store time, broker and physical
    offset."""
    hosts, here = site.hosts, site.stores / "b"
    both = ["a:order 0", "b:order 1", "a:order 2", "b:order 3", "a:order 4", "b:order 5"]
    assert hosts.succeed("cat", site.a, site.b, "orders").splitlines() == both
    newest = ["right:order 3", "left:order 4", "right:order 5"]
    assert hosts.succeed("tail", "@both", "-n", "3", "orders").splitlines() == newest
    assert hosts.succeed("grep", site.a, here, "order [01]", "orders") == f"a:order 0\n{here}:order 1\n"
    assert (
        hosts.succeed("grep", "-c", site.a, here, "-e", "x:|order [01]") == f"a:bills:0\na:orders:1\n{here}:orders:1\n"
    )
    table = [line.split() for line in hosts.succeed("topics", site.a, here).splitlines()]
    assert table == [
        ["BROKER", "TOPIC", "QUEUES", "MESSAGES"],
        ["a", "bills", "4", "1"],
        ["a", "orders", "4", "3"],
        [str(here), "orders", "4", "3"],
    ]
    assert [line.split()[0] for line in hosts.succeed("status", site.a, here).splitlines()] == [
        "BROKER",
        "a",
        str(here),
    ]


def test_each_line_names_its_broker(site: Site) -> None:
    """6.2 With several places each line begins with the name of its broker. The name is that in fleet.toml, else the
    host, or HOST:PLACE if the host has several places. JSON has it in `broker`, `--format` as `%B`."""
    hosts, twice = site.hosts, f"a:{site.stores / 'b'}"
    put(site.stores / "b", "lines", b"one\na:two")
    assert hosts.succeed("cat", site.a, twice, "lines") == f"{twice}:one\n{twice}:a:two\n"
    shown = [json.loads(line) for line in hosts.succeed("cat", "@both", "orders/2/0", "--json").splitlines()]
    assert [(one["broker"], one["body"]) for one in shown] == [("left", "order 2"), ("right", "order 5")]
    assert hosts.succeed("cat", site.a, site.b, "lines", "--format", "%B %S") == "b 9\n"
    assert hosts.succeed("cat", site.a, "orders/2/0", "--format", "<%B> %b") == "<> order 2\n"


def test_arguments_are_no_part_of_a_command_line(site: Site) -> None:
    """6.3 The command line on the other host is just `mountctl remote`. Places, topics and everything else go to its
    standard input. A host name that begins with `-` is refused."""
    hosts, hostile = site.hosts, site.stores / HOSTILE
    MessageStore.open(hostile, create=True).close()
    put(hostile, "orders", b"reached")
    assert hosts.succeed("cat", f"a:{hostile}", "orders") == "reached\n"
    assert hosts.succeed("grep", f"a:{hostile}", "';`id`|reached", "orders", "--key", "ORDER-7") == "reached\n"
    assert hosts.run("cat", f"a:{hostile}", "$(id)\n").returncode == os.EX_USAGE
    assert {*hosts.commands()} == {"mountctl remote"}
    refused = hosts.run("cat", "-oProxyCommand=touch x:/mnt", "orders")
    assert refused.returncode != 0
    refused = hosts.run("cat", "--", "-oProxyCommand=x:/mnt", "orders")
    assert (refused.returncode, refused.stdout) == (os.EX_USAGE, "")
    assert "'-oProxyCommand=x:/mnt': this is not a host name" in refused.stderr


def test_a_host_without_an_answer_is_named(site: Site) -> None:
    """6.4 A host that does not answer is named on standard error, and the exit code is 68; the messages of the other
    hosts are printed. A topic that some places lack is read from the others. A topic that no place has is an error."""
    hosts = site.hosts
    (hosts.folder / "down/off").touch()
    done = hosts.run("cat", "off:/mnt/mq", site.a, "orders")
    assert (done.returncode, done.stdout) == (NO_ANSWER, "a:order 0\na:order 2\na:order 4\n")
    assert done.stderr.startswith("mountctl: off: it does not answer: ")
    done = hosts.run("topics", "a:/nothing/there", site.b)
    assert (done.returncode, done.stdout.split()[4]) == (os.EX_NOINPUT, "b")
    assert done.stderr.startswith("mountctl: a: '/nothing/there' is neither a store nor a mount point")
    assert hosts.run("grep", site.a, site.b, "nothing", "bills").returncode == FINDINGS
    done = hosts.run("tail", site.a, site.b, "bils", "bills")
    assert (done.returncode, done.stderr) == (
        os.EX_USAGE,
        "mountctl: no place has 'bils': see `mountctl topics` with these places\n",
    )


@contextmanager
def followed(hosts: Network, *words: str) -> Iterator[tuple[Path, Path]]:
    """`tail -f` for the block, with the files of its output and its errors; it ends by Ctrl-C."""
    out, err = hosts.folder / "out", hosts.folder / "err"
    with out.open("wb") as printed, err.open("wb") as said:
        command = [sys.executable, "-m", "mountctl", "tail", "-f", *words]
        process = subprocess.Popen(command, stdout=printed, stderr=said, env=hosts.environment)
    try:
        yield out, err
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_SECONDS) == INTERRUPTED
    finally:
        process.kill()
        process.wait()


def test_a_host_that_is_lost_while_it_is_followed_is_asked_again(site: Site) -> None:
    """6.5 `tail -f` prints the messages of all places as they come. If the connection to a host is lost, standard
    error names it, and `tail` tries again with growing pauses. No message is then missing or printed twice. Ctrl-C
    ends the processes on all hosts."""
    hosts = site.hosts
    with followed(hosts, site.a, site.b, "orders", "-n", "2") as (out, err):
        eventually(lambda: out.read_text() == "a:order 4\nb:order 5\n", "the first part")
        put(site.stores / "b", "orders", b"before the loss")
        eventually(lambda: out.read_text().endswith("\nb:before the loss\n"), "what comes later")
        hosts.take_down("b")
        eventually(lambda: "b: it was lost" in err.read_text(), "the loss")
        put(site.stores / "b", "orders", b"meanwhile", queue=1)
        put(site.stores / "a", "orders", b"of the other")
        eventually(lambda: out.read_text().endswith("\na:of the other\n"), "the other host")
        hosts.bring_up("b")
        eventually(lambda: "b: it is back" in err.read_text(), "the host's return")
        put(site.stores / "b", "orders", b"after it")
        eventually(lambda: out.read_text().endswith("\nb:after it\n"), "what comes after the return")
    lines = out.read_text().splitlines()
    assert lines[2:] == ["b:before the loss", "a:of the other", "b:meanwhile", "b:after it"]
    assert len(err.read_text().splitlines()) == 2
    eventually(lambda: not hosts.processes(), "the end of the processes on the hosts")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            """echo '{"type":"Hello","version":"9.1","protocol":9}'""",
            "mountctl 9.1 there is another version's",
        ),
        ("echo 'Welcome \033[31m!'", r"it sends 'Welcome \x1b[31m!', which is no answer"),
        ("echo \"mountctl: there is no verb 'remote'\" >&2; exit 2", "there is no verb 'remote'"),
    ],
)
def test_another_version_is_refused(site: Site, program: str, reason: str) -> None:
    """6.6 A host is refused by name if its version of fsstore can't answer, or if its shell prints something."""
    site.hosts.install("other", program)
    done = site.hosts.run("topics", "other:/mnt/mq")
    assert (done.returncode, done.stdout) == (NO_ANSWER, "")
    assert f"mountctl: other: it does not answer: {reason}" in done.stderr


def test_a_terminal_gets_no_escape_codes_of_another_host(site: Site) -> None:
    """6.7 On a terminal, control characters in another host's messages that move the cursor or hide text are printed
    as escapes. Elsewhere bodies are printed byte for byte."""
    hosts = site.hosts
    command = [sys.executable, "-m", "mountctl", "cat", site.a, "bills"]
    main, terminal = pty.openpty()
    subprocess.run(command, stdout=terminal, env=hosts.environment, timeout=DEADLINE_SECONDS, check=True)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # the end
        while part := os.read(main, 4096):
            shown += part
    os.close(main)
    assert shown == b"bill\r\n\\xff\\x1b[31m\r\n"
    done = subprocess.run(command, capture_output=True, env=hosts.environment, timeout=DEADLINE_SECONDS, check=True)
    assert done.stdout == b"bill\n\xff\x1b[31m\n"


TAKES_PLACES = {"cat", "tail", "grep", "topics", "status", "top"}
ELSEWHERE = "a:/mnt/mq"
OTHERS = {
    **{verb: [ELSEWHERE] for verb in ("check", "dlq", "hist", "init", "promote", "restart", "retention")},
    **{verb: [ELSEWHERE] for verb in ("serve", "umount")},
    **{verb: [ELSEWHERE, "orders"] for verb in ("fields", "put", "wait")},
    "backup": [ELSEWHERE, "copy"],
    "consume": [ELSEWHERE, "orders", "-g", "billing"],
    "copy": [ELSEWHERE, "orders", "store"],
    "export": [ELSEWHERE, "folder"],
    "import": [__file__, ELSEWHERE, "-t", "orders"],
    "mount": [ELSEWHERE, "mnt"],
    "profile": [ELSEWHERE],
    "replicate": ["broker", ELSEWHERE],
    "restore": [ELSEWHERE, "made"],
    "sql": [ELSEWHERE, "select 1"],
}


@pytest.mark.parametrize("verb", OTHERS)
def test_other_verbs_name_those_that_take_another_host(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.8 All other verbs refuse a place on another host, and name the verbs that accept one."""
    assert {*VERBS} == {*OTHERS, *TAKES_PLACES, "remote", "completion"}
    monkeypatch.chdir(tmp_path)
    done = mountctl(verb, *OTHERS[verb])
    assert done.returncode == os.EX_USAGE
    assert (
        "'a:/mnt/mq' is a place of another host: cat, tail, grep, topics, status and top take such places"
        in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_messages_are_printed_while_more_are_sent(site: Site) -> None:
    """6.9 Messages are printed while the hosts are still sending. No answer is held in memory as a whole, and a host
    waits while the output is not read."""
    row = '{"type":"Row","message":{"topic":"orders","queue":0,"offset":0,"body":"eA==","store_time_ms":0}}'
    hello = '{"type":"Hello","version":"1","protocol":2}'
    site.hosts.install("endless", f"echo '{hello}'\nexec yes '{row}'")
    command = [sys.executable, "-m", "mountctl", "cat", "endless:/x", site.a, "orders"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=site.hosts.environment) as reading:
        assert reading.stdout is not None
        assert [reading.stdout.readline() for _ in range(1000)] == [b"endless:x\n"] * 1000
        reading.stdout.close()
        assert reading.wait(DEADLINE_SECONDS) == 0
    eventually(lambda: not site.hosts.processes(), "the end of the processes on the hosts")


def test_activity_of_several_hosts(site: Site, tmp_path: Path) -> None:
    """6.10 `top` over several places prints a line for each broker. Below are the busiest topics and the groups
    furthest behind, of all brokers, each with its broker's name. If a host does not answer, or has no mount there,
    its line says so. In JSON each line has an object by broker."""
    hosts = site.hosts
    (hosts.folder / "down/gone").touch()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with ExitStack() as stack:
        one, two = (stack.enter_context(contextmanager(site_in)(tmp_path / name)) for name in ("one", "two"))
        for number, mount in enumerate((one, two), 1):
            MessageStore.open(mount.store, create=True).close()
            put(mount.store, "bills", b"bill", *[b"order"] * number)
            mount.mounted()
            hosts.succeed("consume", mount.mountpoint, "bills", "-g", "billing", "-n", "1")
        places = f"a:{one.mountpoint}", f"b:{two.mountpoint}", f"c:{site.stores / 'a'}", "gone:/mnt/mq"
        done = hosts.run("top", *places, "-n", "1", "--interval", "0.1")
        assert done.returncode == NO_ANSWER
        assert "gone" in done.stderr
        table = [line.split() for line in done.stdout.splitlines() if line]
        assert [row[:2] for row in table if row[0] == "BROKER"] == [
            ["BROKER", name] for name in ("IN/S", "TOPIC", "GROUP")
        ]
        assert [row[0] for row in table[1:5]] == ["a", "b", "c", "gone"]
        assert table[3][1:] == table[4][1:] == ["no", "mount", "answers"]
        assert table[6:8] == [["a", "bills", "4", "2", "0"], ["b", "bills", "4", "3", "0"]]
        assert table[9:] == [["b", "billing", "bills", "2"], ["a", "billing", "bills", "1"]]
        lines = hosts.run("top", *places[:2], "-n", "2", "--interval", "0.1", "--json").stdout.splitlines()
        assert [[*json.loads(line)] for line in lines] == [["a", "b"]] * 2
        assert json.loads(lines[1])["b"]["topics"][0]["messages"] == 3
