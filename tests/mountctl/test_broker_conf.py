"""A broker's log over several paths, through real mounts and every verb: by -o, and by the broker's own broker.conf."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import MessageStore, OpenMode, StoreConfig, with_broker_conf
from mountctl.errors import CommandError
from mountctl.options import parse, parse_properties, settings_of
from tests.golden55 import CLIENTS_OWN, Golden55, golden55, traces
from tests.mount.harness import extended_attributes
from tests.mountctl.conftest import DEADLINE_SECONDS, Site, clear, eventually, mountctl, succeed


@pytest.fixture
def given(tmp_path: Path) -> Golden55:
    """A store that a broker wrote over two paths, none of them remembered."""
    return golden55("multi", tmp_path.resolve())


@pytest.fixture
def there(given: Golden55, tmp_path: Path) -> Iterator[Site]:
    """Where it is mounted."""
    folder = tmp_path.resolve()
    site = Site(given.path, folder / "mnt", folder / "mount.log")
    site.mountpoint.mkdir()
    yield site
    clear([site.mountpoint])


def paths_of(given: Golden55) -> str:
    return f"storePathCommitLog={given.path}/commitlog,{given.folder}/multi2/commitlog"


@pytest.fixture
def conf(given: Golden55) -> Path:
    """The broker.conf of that broker."""
    path = given.folder / "broker.conf"
    path.write_text(
        "# a broker\nbrokerClusterName = DefaultCluster\nbrokerName=broker-a\nbrokerId=0\n"
        f"storePathRootDir={given.path}\n"
        f"storePathCommitLog={given.path}/commitlog,\\\n    {given.folder}/multi2/commitlog\n"
        "mappedFileSizeCommitLog=65536\nflushDiskType=SYNC_FLUSH\ntransientStorePoolEnable=true\n"
        "brokerRole=ASYNC_MASTER\nreadOnlyCommitLogStorePaths=\n"
    )
    return path


def require_same_files(mountpoint: Path, given: Golden55) -> None:
    """Every message, as a file and its attributes; and every key leads to it."""
    for line in given.messages:
        topic = mountpoint / line["topic"]
        path = topic / str(line["q"]) / f"{line['qo']:020d}"
        body = path.read_bytes()
        assert (len(body), hashlib.sha256(body).hexdigest()) == (line["len"], line["sha"])
        assert path.stat().st_mtime_ns == line["store"] * 1_000_000
        assert attributes(path) == expected_attributes(line), path
        for key in line["props"].get("KEYS", "").split():
            assert path.name in {name.partition("-")[2] for name in os.listdir(topic / "keys" / f"{key}@all")}


def attributes(path: Path) -> dict[str, str]:
    return {name.removeprefix("user.mq."): value for name, value in extended_attributes(path).items()}


def expected_attributes(line: dict[str, Any]) -> dict[str, str]:
    properties = {name: value for name, value in line["props"].items() if name not in CLIENTS_OWN}
    numbers = {
        "queue_offset": "mqo", "physical_offset": "po", "store_size": "size", "born_time": "born",
        "store_time": "store", "sys_flag": "sf", "flag": "flag", "reconsume_times": "rc", "body_crc": "crc",
        "msg_id": "id",
    }  # fmt: skip
    fields = {name: str(line[short]) for name, short in numbers.items()}
    fields |= {"born_host": host(line["bh"]), "store_host": host(line["sh"]), "keys": properties.get("KEYS", "")}
    fields |= {"tags": properties.get("TAGS", ""), "unique_key": properties.get("UNIQ_KEY", "")}
    fields |= {f"property.{name}": value for name, value in properties.items()}
    return {name: value for name, value in fields.items() if value}


def host(text: str) -> str:
    address, _, port = text.partition(":")
    return f"{'.'.join(str(number) for number in bytes.fromhex(address))}:{port}"


@pytest.mark.parametrize("how", ["--read-only", "--follow"])
def test_a_log_over_two_paths_is_mounted_whole_and_left_alone(given: Golden55, there: Site, how: str) -> None:
    before = traces(given.folder)
    there.mounted(how, "-o", paths_of(given))
    require_same_files(there.mountpoint, given)
    status = json.loads((there.mountpoint / "@store/status.json").read_text())
    assert (status["stats"]["commit_log_files"], status["stats"]["index"]) == (5, "in use")
    assert traces(given.folder) == before


@pytest.mark.parametrize("how", ["--read-only", "--follow", "write"])
def test_without_its_paths_it_is_refused_with_the_option_that_helps(given: Golden55, there: Site, how: str) -> None:
    before = traces(given.folder)
    done = there.mount(*([] if how == "write" else [how]))
    assert done.returncode != 0
    assert "-o storePathCommitLog=" in done.stderr
    assert traces(given.folder) == before


def test_the_brokers_own_conf_gives_store_and_paths(given: Golden55, there: Site, conf: Path) -> None:
    done = mountctl("mount", "--log-file", there.log, "--follow", "--broker-conf", conf, there.mountpoint)
    assert done.returncode == 0, done.stderr + there.log_text()
    require_same_files(there.mountpoint, given)
    assert "ignored brokerClusterName, brokerId, brokerName, brokerRole" in there.log_text()


def test_what_is_published_through_a_mount_goes_on_over_the_paths(given: Golden55, there: Site, conf: Path) -> None:
    there.mounted("--broker-conf", str(conf))
    (there.mountpoint / "va-multi/0/append").write_bytes(b"x" * 1000 + b"\n")
    for _ in range(200):
        with (there.mountpoint / "va-multi/0/append").open("ab", buffering=0) as append:
            append.write(b"y" * 1000 + b"\n")
    require_same_files(there.mountpoint, given)
    succeed("umount", there.mountpoint)
    numbers = [
        {int(file.name) // 65536 % 2 for file in folder.iterdir()}
        for folder in (given.path / "commitlog", given.folder / "multi2/commitlog")
    ]
    assert numbers == [{0}, {1}]
    assert "no findings" in succeed("check", "-o", paths_of(given), given.path)
    refused = there.mount()
    assert f"-o {paths_of(given)}" in refused.stderr
    assert mountctl("check", given.path).returncode != 0


def test_every_verb_takes_the_paths(given: Golden55, conf: Path) -> None:
    line = given.messages[0]
    target = f"{line['topic']}/{line['q']}/{line['qo']}"
    for words in (["-o", paths_of(given)], ["--broker-conf", str(conf)]):
        assert hashlib.sha256(succeed("cat", *words, given.path, target).encode()).hexdigest() == line["sha"]
        assert "va-multi" in succeed("topics", "list", *words, given.path)
        assert "in 5 files" in succeed("status", *words, given.path)
        assert succeed("tail", "-n", "1", *words, given.path, "va-multi/0")
        assert "no findings" in succeed("check", *words, given.path)
        succeed("put", *words, given.path, "va-multi/0", "one more")
        assert succeed("tail", "-n", "1", *words, given.path, "va-multi/0") == "one more\n"
        assert "no findings" in succeed("check", "--repair", *words, given.path)
    refused = mountctl("cat", given.path, target)
    assert refused.returncode != 0
    assert paths_of(given) in refused.stderr


def test_a_new_store_is_made_over_the_paths_that_are_asked_for(tmp_path: Path) -> None:
    store, other = tmp_path.resolve() / "store", tmp_path.resolve() / "disk2"
    other.mkdir()
    words = ["-o", f"storePathCommitLog={store}/commitlog,{other}/commitlog"]
    succeed("init", *words, store)
    succeed("put", *words, store, "orders", "12 apples")
    assert succeed("cat", *words, store, "orders") == "12 apples\n"
    assert mountctl("cat", store, "orders").returncode != 0


def test_options_are_refused_where_a_mount_has_its_own(given: Golden55, there: Site) -> None:
    there.mounted("--read-only", "-o", paths_of(given))
    done = mountctl("cat", "-o", paths_of(given), there.mountpoint, "va-multi/0/0")
    assert (done.returncode, "leave -o and --broker-conf out" in done.stderr) == (os.EX_USAGE, True)


def test_a_conf_of_another_store_is_refused(given: Golden55, there: Site, conf: Path) -> None:
    conf.write_text(conf.read_text().replace(f"storePathRootDir={given.path}", "storePathRootDir=/home/broker/store"))
    for done in (there.mount("--broker-conf", str(conf)), mountctl("check", "--broker-conf", conf, given.path)):
        assert done.returncode == os.EX_USAGE
        assert "its storePathRootDir is /home/broker/store" in done.stderr


def test_fstab_names_paths_or_a_broker_conf(given: Golden55, there: Site, conf: Path) -> None:
    code = "import sys; sys.argv[0] = '/sbin/mount.fsstore'; from mountctl.main import main; main()"
    for word in (paths_of(given), f"broker_conf={conf}"):
        options = f"rw,nodev,{word},follow,log_file={there.log}"
        command = [sys.executable, "-c", code, str(given.path), str(there.mountpoint), "-o", options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        assert len(os.listdir(there.mountpoint / "va-multi" / "0")) >= 65
        succeed("umount", there.mountpoint)


def test_a_mount_follows_a_broker_over_two_paths(given: Golden55, there: Site) -> None:
    """The broker here is a store of ours, which writes the files as a broker does."""
    config = parse([paths_of(given)]).store
    shutil.rmtree(given.path / "timerlog", ignore_errors=True)
    with MessageStore.open(given.path, settings_of(config, None).applied_to(StoreConfig())) as writer:
        there.mounted("--follow", "-o", paths_of(given))
        for number in range(300):
            writer.put_lines("vb-multi", b"%d" % number + b" " * 1000 + b"\n", 1, keys=[f"new-{number}"])
        writer.flush()
        stream = there.mountpoint / "vb-multi" / "1.log"
        eventually(lambda: stream.read_bytes().endswith(b"299" + b" " * 1000 + b"\n"), "the newest message shows")
        eventually((there.mountpoint / "vb-multi/keys/new-299").exists, "its key leads to it")


# words


def test_paths_have_commas_between_them_among_other_options() -> None:
    words = parse(["ro,storePathCommitLog=/a/x,/b=c/y,./z,maxBytes=72", "readOnlyCommitLogStorePaths=/old,nodev"])
    assert words.store == {
        "storePathCommitLog": f"/a/x,/b=c/y,{Path.cwd()}/z",
        "maxBytes": "72",
        "readOnlyCommitLogStorePaths": "/old",
    }
    assert set(words.switches) == {"read_only"}
    assert words.kernel == ("nodev",)


def test_a_path_after_another_option_is_no_path_of_the_log() -> None:
    with pytest.raises(CommandError, match="unknown option: -o /b"):
        parse(["fileReservedTime=72,/b"])


def test_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# comment\n! another\n\n  a = 1 \nb:2\nc 3\r\nd=x\\\r\n   y\\\n  z\ne\\=f=g=h\ni=\\u00e9\\t|\\\\\n"
        "#c\\\nj=4\nk\nl==m\na=last\nn=tail\\"
    )
    assert parse_properties(text) == {
        "a": "last", "b": "2", "c": "3", "d": "xyz", "e=f": "g=h", "i": "é\t|\\", "j": "4", "k": "", "l": "=m",
        "n": "tail",
    }  # fmt: skip


def test_a_broker_conf_has_the_sizes_of_a_broker_and_knows_more_names_than_we() -> None:
    settings = {"brokerName": "x", "deleteWhen": "04 ", "fileReservedTime": "48", "maxIndexNum": " "}
    config = with_broker_conf(StoreConfig(mode=OpenMode.FOLLOW), settings)
    assert config.retention is not None
    assert (config.retention.max_age_hours, config.retention.delete_when_hours) == (48, (4,))
    assert config.sizes is not None
    assert config.sizes.commit_log_bytes == 1 << 30
