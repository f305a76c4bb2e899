"""The examples in the help, typed as they stand (in a folder of the test's own, instead of /srv and /mnt)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from mountctl.main import VERBS
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, clear, fill, site_in, succeed

RUNS_ON = {"mount", "umount", "init", "check", "completion", "restore"}
"""Verbs whose examples begin on a store that is not mounted (umount mounts it first)."""


def examples(*verb: str) -> list[str]:
    words = succeed(*verb, "--help").partition("Example")[2].partition("\n\n")[0]
    lines = [line.strip() for line in words.splitlines() if line.startswith("    mountctl ")]
    return [line for line in lines if not OTHER_HOSTS & {*line.split()}]


OTHER_HOSTS = {"host-a:/mnt/mq", "@prod", "broker-a.example", "broker-a.example:10912", "/srv/copy"}
"""Such places are tried over ssh, in test_serve_promises_hosts.py. Brokers and copies are tried in
test_replication_promises_copy.py."""
WITH_SPARK = {"export", "import"}
"""Their examples run in tests/spark, which has a session."""
EXAMPLES = [(verb, example) for verb in VERBS if verb not in WITH_SPARK for example in examples(verb)]
EXAMPLES += [("topics", example) for verb in ("list", "create", "delete") for example in examples("topics", verb)]


def typed(example: str, site: Site) -> str:
    """The example, on this test's store and mount point, and with the log beside them."""
    for path in ("/srv/store", "/root/store"):
        example = example.replace(path, str(site.store))
    for path in (
        "/srv/archive",
        "~/.local/share/bash-completion/completions",
        "${fpath[1]}",
        "~/.config/fish/completions",
    ):
        example = example.replace(path, str(site.log.parent / "archive"))
    example = example.replace("/srv/restored", str(site.log.parent / "restored"))
    example = example.replace("/backup/mq", str(site.log.parent / "backup"))
    for path in ("/mnt/mq", "/mnt/broker"):
        example = example.replace(path, str(site.mountpoint))
    example = example.replace("mountctl mount", f"mountctl mount --log-file {site.log}").replace(
        "mountctl", f"{sys.executable} -m mountctl", 1
    )
    if " serve " in example:
        return f"timeout --preserve-status -s TERM 3 {example} --listen 127.0.0.1:0 || [ $? = 143 ]"
    if " tail -f" in example or " top " in example:  # runs until it is interrupted
        return f"timeout --preserve-status -s INT 2 {example} || [ $? = 130 ]"
    return f"echo y | {example}" if " delete " in example else example


SHARE_A_MOUNT = {
    *(
        "backup",
        "cat",
        "consume",
        "copy",
        "dlq",
        "grep",
        "profile",
        "put",
        "remote",
        "retention",
        "sql",
        "status",
        "tail",
        "top",
        "wait",
    ),
}
"""Verbs whose examples need no store of their own: their messages disturb no other example."""
SHARED = [(verb, example) for verb, example in EXAMPLES if verb in SHARE_A_MOUNT and "--verify" not in example]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A mount for the examples of those."""
    for site in site_in(tmp_path_factory.mktemp("examples")):
        fill(site.store)
        site.mounted()
        succeed("put", site.store, "%DLQ%billing", "dead", "--property", "RETRY_TOPIC=orders")
        succeed("put", site.store, "orders", "17 apples", "--key", "ORDER-17")
        succeed("init", site.log.parent / "archive")
        (site.log.parent / "orders.txt").write_text("one\ntwo\n")
        yield site


def require_success(example: str, site: Site) -> None:
    """Type it, beside the store and its mount point."""
    done = subprocess.run(
        ["bash", "-c", typed(example, site)],
        cwd=site.log.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr + site.log_text()


@pytest.mark.parametrize(("verb", "example"), SHARED)
def test_examples_in_the_help_work_on_one_mount(verb: str, example: str, shared: Site) -> None:
    require_success(example, shared)


@pytest.mark.parametrize(("verb", "example"), [one for one in EXAMPLES if one not in SHARED])
def test_examples_in_the_help_work(verb: str, example: str, site: Site) -> None:
    if verb != "init":
        fill(site.store)
    if "--verify" in example or verb == "restore":
        succeed("backup", site.store, site.log.parent / "backup")
    if verb not in RUNS_ON or verb == "umount" or "check --rate" in example:
        site.mounted()
    if example.startswith("mountctl topics create"):
        succeed("topics", "delete", site.store, "orders", "--yes")
    (site.log.parent / "archive").mkdir()
    require_success(example, site)
    clear([site.mountpoint])
