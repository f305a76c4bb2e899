"""RocketMQ's kind of JSON, its backups, and our replacing of it."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigFileError
from engine.files.disk import Disk
from engine.files.paths import read_file
from engine.settings import config_file
from engine.settings.config_file import backup_of, parse_config, read_config, write_config

OFFSETS = '{\n\t"offsetTable":{\n\t\t"TopicTest@g":{0:250,1:251\n\t\t}\n\t}\n}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OFFSETS, {"offsetTable": {"TopicTest@g": {"0": 250, "1": 251}}}),
        ("{0:1}", {"0": 1}),
        ('{"0":1}', {"0": 1}),
        ("{3:15,18:2\n\t}", {"3": 15, "18": 2}),
        ("{ -1 : {2:{3 :4}} }", {"-1": {"2": {"3": 4}}}),
        ('{"a":[1,2,3],"b":{}}', {"a": [1, 2, 3], "b": {}}),
        ('{"text":"{1:2,3:4}","quote\\"{5:6":7}', {"text": "{1:2,3:4}", 'quote"{5:6': 7}),
        ('{"back\\\\":{1:"\\\\"}}', {"back\\": {"1": "\\"}}),
        ("{}", {}),
    ],
)
def test_bare_integer_keys_are_read_and_strings_left_alone(text: str, expected: object) -> None:
    assert parse_config(text) == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "1", "null", "{", '{"a":}', '{"a"', "{a:1}", "{1:2", '{"a":"', "[" * 100_000, "{1:" * 100_000]
)
def test_what_is_no_object_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_config(text)


@given(st.dictionaries(st.text(), st.recursive(st.integers() | st.text() | st.booleans(), st.lists, max_leaves=5)))
def test_plain_json_means_the_same(content: dict[str, object]) -> None:
    assert parse_config(json.dumps(content)) == content
    assert parse_config(json.dumps(content, ensure_ascii=False, indent="\t")) == content


@given(st.dictionaries(st.integers(), st.text(), min_size=1))
def test_any_integer_key_may_be_unquoted(content: dict[int, str]) -> None:
    text = "{" + ",".join(f"{key}:{json.dumps(value)}" for key, value in content.items()) + "}"
    assert parse_config(text) == {str(key): value for key, value in content.items()}


@pytest.mark.parametrize("main", [None, b"", b"  \n", bytes(300), b'{"cut', b"\xff\xfe", b"[1]"])
def test_the_backup_replaces_a_file_that_is_missing_empty_or_damaged(tmp_path: Path, main: bytes | None) -> None:
    path = tmp_path / "topics.json"
    if main is not None:
        path.write_bytes(main)
    backup_of(path).write_text("{1:2}")
    assert read_config(path) == {"1": 2}


def test_no_file_and_no_backup_is_empty(tmp_path: Path) -> None:
    assert read_config(tmp_path / "config" / "topics.json") == {}
    (tmp_path / "topics.json").touch()
    assert read_config(tmp_path / "topics.json") == {}


def test_a_damaged_file_without_a_good_backup_is_named(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    path.write_text('{"cut')
    for backup in (None, "also {cut"):
        if backup:
            backup_of(path).write_text(backup)
        with pytest.raises(ConfigFileError) as caught:
            read_config(path)
        assert caught.value.path == path


def test_writing_keeps_the_previous_file_as_backup_and_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    for number in range(3):
        write_config(path, {"größe": {"0": number}}, Disk())
    assert json.loads(path.read_bytes()) == {"größe": {"0": 2}}
    assert json.loads(backup_of(path).read_bytes()) == {"größe": {"0": 1}}
    assert sorted(os.listdir(path.parent)) == ["topics.json", "topics.json.bak"]


def test_a_damaged_file_never_becomes_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    backup_of(path).write_text("{1:2}")
    path.write_text('{"cut')
    write_config(path, {"a": 1}, Disk())
    assert backup_of(path).read_text() == "{1:2}"


@pytest.mark.parametrize("fails_at", range(3))
def test_writing_that_fails_anywhere_leaves_a_file_to_read(tmp_path: Path, fails_at: int) -> None:
    class Failing(Disk):
        calls = 0

        def _count(self) -> None:
            self.calls += 1
            if self.calls > fails_at:
                raise OSError(errno.EIO, "bad disk")

        def sync(self, descriptor: int, path: Path) -> None:
            self._count()

        def sync_directory(self, path: Path) -> None:
            self._count()

    path = tmp_path / "topics.json"
    write_config(path, {"a": 1}, Disk())
    with pytest.raises(OSError, match="bad disk"):
        write_config(path, {"a": 2}, Failing())
    assert read_config(path) in ({"a": 1}, {"a": 2})


def test_a_file_that_the_disk_refuses_is_not_replaced_by_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "consumerOffset.json"
    for number in (1, 2):
        write_config(path, {"number": number}, Disk())

    def refuse(file: Path, most_bytes: int) -> bytes:
        if file == path:
            raise OSError(errno.EIO, "Input/output error", str(file))
        return read_file(file, most_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(config_file, "read_file", refuse)
        with pytest.raises(ConfigFileError, match=r"consumerOffset\.json: it can't be read: Input/output error"):
            read_config(path)
    path.write_text("{")
    assert read_config(path) == {"number": 1}
