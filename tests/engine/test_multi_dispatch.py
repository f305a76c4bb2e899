"""Multi-dispatch: one message in several queues, as a broker wrote it; nothing that a publisher can use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine import IllegalMessageError, Message, MessageStore, OpenMode, check_store, repair_store
from engine.record.multi_dispatch import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from tests.engine.light_queues import naming, put_as_broker
from tests.engine.storetools import SMALL, bodies, contents, killed, lose_derived, opened, require_clean

ON = replace(SMALL, multi_dispatch=True)


def made(path: Path, *topics: str) -> None:
    """A store with these topics of two queues each."""
    with MessageStore.open(path, ON, create=True) as store:
        for topic in topics:
            store.create_topic(topic, 2)


# as a broker wrote it


def fill(store: MessageStore, first: int, end: int) -> None:
    """Messages in a light queue and in another topic's, which has its own between them."""
    for number in range(first, end):
        put_as_broker(store, naming("%LMQ%a,other", b"%d" % number), 1)
        store.put(Message("other", b"own"), 1)


def require_filled(store: MessageStore, count: int) -> None:
    numbers = [b"%d" % number for number in range(count)]
    assert bodies(store, "%LMQ%a", 0) == numbers
    assert bodies(store, "T", 1) == numbers
    assert bodies(store, "other", 1) == [body for number in numbers for body in (number, b"own")]
    assert store.headers("other", 1, 0, 2 * count)["ok"].all()
    assert store.get("T", 1, count - 1).properties[MULTI_QUEUE_OFFSET] == f"{count - 1},{2 * count - 2}"


def test_a_message_stands_in_every_queue_it_names(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made(path, "T", "other", "%LMQ%a")
    with opened(path, ON) as store:
        fill(store, 0, 3)
        store.flush()
        require_filled(store, 3)
    lose_derived(path)
    with opened(path, ON) as store:
        require_filled(store, 3)


def test_after_a_kill_the_queues_go_on_and_are_made_anew_from_the_log(tmp_path: Path) -> None:
    path, left = tmp_path / "store", tmp_path / "left"
    made(path, "T", "other", "%LMQ%a")
    with killed(path, left, ON) as store:
        fill(store, 0, 30)
        store.flush()
        fill(store, 30, 60)
    for lost in ("", "fsstore", "consumequeue", "index"):
        copy = tmp_path / f"without {lost}"
        shutil.copytree(left, copy)
        shutil.rmtree(copy / lost if lost else copy / "nothing", ignore_errors=True)
        with opened(copy, ON) as store:
            require_filled(store, 60)
            fill(store, 60, 61)
            require_filled(store, 61)


def test_a_transaction_that_is_not_committed_is_in_no_further_queue(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made(path, "T", "other")
    with opened(path, ON) as store:
        for sys_flag in (4, 0xC, 8):
            put_as_broker(store, replace_flag(naming("other", b"%d" % sys_flag), sys_flag), 0)
        assert bodies(store, "other", 0) == [b"8"]
    lose_derived(path)
    with opened(path, ON) as store:
        assert bodies(store, "other", 0) == [b"8"]


def replace_flag(message: Message, sys_flag: int) -> Message:
    return Message(message.topic, message.body, properties=message.properties, sys_flag=sys_flag)


# as a publisher asks for it


def test_where_names_count_a_message_that_has_some_is_refused_by_name_and_nothing_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "store"
    made(path, "T", "other")
    with opened(path, ON) as store:
        fill(store, 0, 3)
        before, known, files = store.physical_end, store.topics(), contents(path / "consumequeue")
        for names in ("other", "%LMQ%a", "unknown", "other,other", "..", ","):
            with pytest.raises(IllegalMessageError, match=MULTI_DISPATCH):
                store.put(naming(names), 1)
            with pytest.raises(IllegalMessageError, match=MULTI_DISPATCH):
                store.put(naming(names, topic="new", DELAY="1"))
            with pytest.raises(IllegalMessageError, match=MULTI_DISPATCH):
                store.put_batch([Message("T", b"good"), naming(names)], 1)
            with pytest.raises(IllegalMessageError, match=MULTI_DISPATCH):
                store.put_lines("T", b"one\ntwo\n", 1, properties={MULTI_DISPATCH: names})
        assert (store.physical_end, store.topics(), contents(path / "consumequeue")) == (before, known, files)
        assert store.read_only_reason is None
        store.put_batch([naming("", b"no name"), Message("T", b"goes on")], 0)
        assert bodies(store, "T", 0) == [b"no name", b"goes on"]
        require_filled(store, 3)


def test_without_the_option_the_names_mean_nothing_and_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as store:
        store.put(naming("other,T,..", b"0"), 0)
        store.put_batch([naming("other", b"1"), Message("T", b"2")], 0)
        store.put_lines("T", b"3\n", 0, properties={MULTI_DISPATCH: "other"})
        assert store.topics() == ["T"]
        assert store.get("T", 0, 0).properties == {MULTI_DISPATCH: "other,T,.."}
    lose_derived(path)
    with opened(path) as store:
        assert store.topics() == ["T"]
        assert bodies(store, "T", 0) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("config", [SMALL, ON])
def test_what_another_store_said_of_a_message_is_left_out(tmp_path: Path, config: object) -> None:
    path = tmp_path / "store"
    made(path, "T", "other")
    said = {MULTI_QUEUE_OFFSET: "7", "__CRC32#": "12345678901"}
    with opened(path, ON if config is ON else SMALL) as store:
        store.put(Message("T", b"0", properties={"p": "q", **said}), 0)
        store.put_batch([Message("T", b"1", properties=said)], 0)
        store.put_lines("T", b"2\n", 0, properties=said)
        store.put(Message("T", b"3", properties={**said, "DELAY": "1"}), 0)
        found = [message.properties for message in store.read("T", 0, 0)]
        assert found == [{"p": "q"}, {}, {}]
        assert not said.keys() & store.get("SCHEDULE_TOPIC_XXXX", 0, 0).properties.keys()


# records that publishers wrote into the log of a broker that does not multi-dispatch


def forged(path: Path, places: Sequence[tuple[str, str]], messages: int = 40) -> None:
    """A store that died: its log has messages of `victim`, and in the middle records that claim these places."""
    made(path, "T", "victim")
    with MessageStore.open(path, SMALL) as store:
        for number in range(messages):
            if number == messages // 2:
                for names, offsets in places:
                    queue_evidence = {MULTI_DISPATCH: names, "INNER_MULTI_QUEUE_OFFSE_": offsets}
                    store.put(Message("T", b"forged", properties=queue_evidence), 0)
            store.put(Message("victim", b"%d" % number), 0)
        store.flush()
    for file in (path / "commitlog").iterdir():
        file.write_bytes(file.read_bytes().replace(b"INNER_MULTI_QUEUE_OFFSE_", b"INNER_MULTI_QUEUE_OFFSET"))
    (path / "abort").touch()
    (path / "fsstore" / "clean.json").unlink(missing_ok=True)


FORGED = {
    "the beginning": [("victim", "0"), ("victim", "1")],
    "the next number": [("victim", "20")],
    "the next numbers": [("victim", "20"), ("victim", "21"), ("victim", "22")],
    "the number after the next": [("victim", "21")],
    "many numbers in one": [(",".join(["victim"] * 50), ",".join(map(str, range(50))))],
    "a gap": [("victim", "30")],
    "a far number": [("victim", "3000000")],
    "the end of int64": [("victim", str((1 << 63) - 1))],
    "behind int64": [("victim", "9" * 19)],
    "thousands of digits": [("victim", "9" * 6_000)],
    "its own queue": [("T", "0"), ("T", "1")],
    "foreign digits": [("victim", "٢٠")],
}


@pytest.mark.parametrize("config", [SMALL, ON], ids=["off", "on"])
@pytest.mark.parametrize("lost", ["", "marks", "derived"])
@pytest.mark.parametrize("places", FORGED.values(), ids=FORGED)
def test_a_forged_place_takes_nothing_from_another_queue(
    tmp_path: Path, places: list[tuple[str, str]], lost: str, config: object
) -> None:
    path = tmp_path / "store"
    forged(path, places)
    if lost:
        shutil.rmtree(path / "fsstore")
    if lost == "derived":
        shutil.rmtree(path / "consumequeue")
    with MessageStore.open(path, ON if config is ON else SMALL) as store:
        assert bodies(store, "victim", 0) == [b"%d" % number for number in range(40)]
        assert bodies(store, "T", 0) == [b"forged"] * len(places)
        require_clean(store.check())
    assert size_of(path / "consumequeue") < 20_000
    require_clean(check_store(path))


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("messages", [40, 41, 42])
def test_a_record_has_its_own_number_though_runs_of_the_log_end_behind_a_forged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: int
) -> None:
    path = tmp_path / "store"
    forged(path, [("victim", str(messages // 2))], messages)
    shutil.rmtree(path / "fsstore")
    shutil.rmtree(path / "consumequeue")
    monkeypatch.setattr("engine.record.scan.CHUNK_BYTES", 1)
    monkeypatch.setattr("engine.record.scan.scan_records.__kwdefaults__", {"verify": True, "chunk_bytes": 1})
    with MessageStore.open(path, ON) as store:
        assert bodies(store, "victim", 0) == [b"%d" % number for number in range(messages)]
        require_clean(store.check())


# the store of a broker that multi-dispatches


def brokers(path: Path) -> None:
    """A broker's store: light queues that config/topics.json does not know, and no marks of ours."""
    made(path, "T", "other", "%LMQ%a")
    with MessageStore.open(path, ON) as store:
        fill(store, 0, 30)
    shutil.rmtree(path / "fsstore")
    topics = path / "config" / "topics.json"
    content = json.loads(topics.read_text())
    del content["topicConfigTable"]["%LMQ%a"]
    topics.write_text(json.dumps(content))


@pytest.mark.parametrize("mode", [OpenMode.READ_ONLY, OpenMode.FOLLOW])
def test_its_light_queues_are_read_without_the_option(tmp_path: Path, mode: OpenMode) -> None:
    brokers(tmp_path)
    before = contents(tmp_path)
    with MessageStore.open(tmp_path, replace(SMALL, mode=mode)) as store:
        require_filled(store, 30)
    assert contents(tmp_path) == before


def test_opening_checking_and_repairing_it_without_the_option_keep_its_light_queues(tmp_path: Path) -> None:
    brokers(tmp_path)
    (tmp_path / "abort").touch()
    require_clean(check_store(tmp_path))
    with opened(tmp_path) as store:
        require_filled(store, 30)
        store.put(Message("other", b"more"), 0)
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    assert list(repair_store(tmp_path))
    with opened(tmp_path) as store:
        require_filled(store, 30)


def test_a_store_shows_it_though_most_messages_have_one_queue(tmp_path: Path) -> None:
    brokers(tmp_path)
    with MessageStore.open(tmp_path, ON) as store:
        for topic in ("T", "other"):
            store.put_lines(topic, b"plain\n" * 100, 0)
        store.put_lines("%LMQ%a", b"plain\n" * 100, 0)
    shutil.rmtree(tmp_path / "fsstore")
    require_clean(check_store(tmp_path))
    assert list(repair_store(tmp_path)) == []
    (tmp_path / "abort").touch()
    shutil.rmtree(tmp_path / "consumequeue" / "T")
    with opened(tmp_path) as store:
        assert store.bounds("%LMQ%a", 0).max_offset == 130


def test_a_damaged_light_queue_is_made_anew_by_a_repair(tmp_path: Path) -> None:
    brokers(tmp_path)
    (file,) = (tmp_path / "consumequeue" / "%LMQ%a" / "0").iterdir()
    raw = bytearray(file.read_bytes())
    raw[20 * 5 + 7] ^= 1
    file.write_bytes(raw)
    assert list(repair_store(tmp_path))
    with opened(tmp_path) as store:
        require_filled(store, 30)


def test_a_message_that_names_queues_and_is_put_into_it_without_the_option_is_in_its_own_alone(tmp_path: Path) -> None:
    brokers(tmp_path)
    numbers = [b"%d" % number for number in range(32)]
    with opened(tmp_path) as store:
        store.put(naming("%LMQ%a,other", numbers[30]), 1)
        store.put_lines("T", numbers[31] + b"\n", 1, properties={MULTI_DISPATCH: "%LMQ%a", MULTI_QUEUE_OFFSET: "30"})
        assert bodies(store, "T", 1) == numbers
    for config in (SMALL, ON):
        (tmp_path / "abort").touch()
        shutil.rmtree(tmp_path / "consumequeue" / "T")
        with opened(tmp_path, config) as store:
            assert bodies(store, "T", 1) == numbers
            assert bodies(store, "%LMQ%a", 0) == numbers[:30]
            assert store.bounds("other", 1).max_offset == 60
