"""Places of a fleet, as they are written on a command line and in the file of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsstore.fleet.places import FleetFileError, Place, PlaceError, SshPlace, group_of, is_place, parse_place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/mnt/mq", Place("/mnt/mq", path="/mnt/mq")),
        ("mq/a:b", Place("mq/a:b", path="mq/a:b")),
        ("host-a:/mnt/mq", Place("host-a:/mnt/mq", ssh=SshPlace("host-a", "/mnt/mq"))),
        ("host-a:mq", Place("host-a:mq", ssh=SshPlace("host-a", "mq"))),
        ("root@host-a:/a b:'c'\n;", Place("root@host-a:/a b:'c'\n;", ssh=SshPlace("root@host-a", "/a b:'c'\n;"))),
        ("mq@[fe80::1]:/mnt", Place("mq@[fe80::1]:/mnt", ssh=SshPlace("mq@fe80::1", "/mnt"))),
        ("http://host-a:9870/", Place("http://host-a:9870/", url="http://host-a:9870")),
        ("https://[::1]:9870", Place("https://[::1]:9870", url="https://[::1]:9870")),
    ],
)
def test_a_place_is_local_or_by_ssh_or_by_http(text: str, place: Place) -> None:
    assert parse_place(text) == place
    assert parse_place(text, "a").name == "a"


@pytest.mark.parametrize(
    "text",
    [
        *("", "a\0b", ":/mnt", "host:", "@prod", "@host:/mnt", "host:a\0b", "ho st:/mnt", "ho\x1bst:/mnt", "[::1/x]:y"),
        *("-oProxyCommand=x:/mnt", "root@-oProxyCommand=x:/mnt", "-x@host:/mnt", "host:--help", "[-x]:/mnt"),
        *(
            "http://",
            "http://:9870",
            "http://host",
            "http://host:x",
            "https://user:secret@host:1",
            "http://host:1/x",
            "http://h:1?x",
        ),
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(PlaceError) as error:
        parse_place(text)
    assert error.value.text == text


def test_an_argument_is_a_place_of_another_host_or_a_topic() -> None:
    assert [is_place(text) for text in ("@prod", "host:/x", "host:x", "-x:/y")] == [True] * 4
    assert [is_place(text) for text in ("orders", "orders/0", "/mnt/a:b", "%RETRY%g", "a/b:c")] == [False] * 5


def test_a_file_names_groups_of_places(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        '[prod]\nb = "host-b:/mnt/mq"\na = {ssh = "host-a:/mnt/mq", url = "https://host-a:9870"}\nc = "/mnt/c"\n'
        '[test]\nb = "http://127.0.0.1:9870"\n'
    )
    assert group_of("@prod", file) == [
        Place("b", ssh=SshPlace("host-b", "/mnt/mq")),
        Place("a", ssh=SshPlace("host-a", "/mnt/mq"), url="https://host-a:9870"),
        Place("c", path="/mnt/c"),
    ]
    assert group_of("@test", file) == [Place("b", url="http://127.0.0.1:9870")]
    with pytest.raises(FleetFileError, match=r"no group @live .* there are: @prod, @test"):
        group_of("@live", file)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[prod", "not TOML"),
        ("[prod]\na = '/a'\na = '/b'\n", "not TOML"),
        ("prod = 'host:/x'", "no group @prod"),
        ("[prod]", "no group @prod"),
        ("[prod]\na = 7", "prod.a is no text"),
        ("[prod]\na = {}", "prod.a is a place, or a table with ssh, url, path"),
        ("[prod]\na = {ssh = 'host:/x', port = '22'}", "prod.a is a place, or a table"),
        ("[prod]\na = {url = 'host:/x'}", "'host:/x' is no url"),
        ("[prod]\na = '-oProxyCommand=x:/mnt'", "not a host name"),
    ],
)
def test_a_file_that_names_no_places_says_why(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(FleetFileError) as error:
        group_of("@prod", file)
    assert error.value.path == file
    assert reason in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="it is not there"):
        group_of("@prod", tmp_path / "fleet.toml")
