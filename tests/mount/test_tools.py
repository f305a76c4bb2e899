"""Programs that people use, on a mounted tree."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.harness import PATIENCE_S, Mounted, bodies, offset_names, publish, refused_with, sh

MESSAGES = 20_000


def test_twenty_thousand_messages_written_one_by_one_are_read_back(queue: Path, tmp_path: Path) -> None:
    lines = [b"%05d %s" % (number, bytes([33 + number % 90]) * (number % 200)) for number in range(MESSAGES)]
    fd = os.open(queue / "append", os.O_WRONLY | os.O_APPEND)
    for line in lines:
        os.write(fd, line + b"\n")
    os.close(fd)
    sh(f"ls | grep -v append | xargs cat > {tmp_path}/all", queue)
    assert (tmp_path / "all").read_bytes() == b"".join(lines)
    assert (queue.parent / "0.log").read_bytes() == b"\n".join(lines) + b"\n"
    assert bodies(queue) == lines


@pytest.fixture(scope="module")
def written(mount: Mounted) -> Path:
    """A topic with messages of many lengths in two queues."""
    topic = mount.topic("tools")
    for queue in "01":
        publish(topic / queue / "append", b"".join(b"%d %s\n" % (n, b"." * (n * 31 % 5_000)) for n in range(300)))
    return topic


def test_ls_shows_every_message_once(written: Path) -> None:
    lines = sh("ls -l --time-style=full-iso", written / "0").splitlines()
    assert len([line for line in lines if line.startswith("-r--r--r--")]) == 300
    assert sh("ls", written / "0").split() == [*(f"{offset:020d}" for offset in range(300)), "append"]


def test_copies_are_equal(written: Path, tmp_path: Path) -> None:
    sh(f"cp -a 0 {tmp_path}/cp && rsync -a --exclude=append 1/ {tmp_path}/rsync", written)
    for queue, copy in (("0", "cp"), ("1", "rsync")):
        for name in offset_names(written / queue):
            assert (tmp_path / copy / name).read_bytes() == (written / queue / name).read_bytes()
            assert (tmp_path / copy / name).stat().st_mtime_ns == (written / queue / name).stat().st_mtime_ns


def test_a_second_rsync_finds_nothing_to_do(written: Path, tmp_path: Path) -> None:
    sh(f"rsync -a --exclude=append 0/ {tmp_path}/copy", written)
    assert sh(f"rsync -ai --exclude=append 0/ {tmp_path}/copy", written) == ""


def test_grep_find_and_wc_agree(written: Path) -> None:
    assert sh("grep -rl '^299 ' 0 1 | sort", written).split() == [f"{queue}/{299:020d}" for queue in "01"]
    assert sh("find 0 1 -name '0*' -type f | wc -l", written).strip() == "600"
    assert sh("cat 0.log 1.log | wc -l", written).strip() == "600"


def test_tar_holds_every_message(written: Path, tmp_path: Path) -> None:
    sh(f"tar -c 0 | tar -x -C {tmp_path}", written)
    for name in offset_names(written / "0"):
        assert (tmp_path / "0" / name).read_bytes() == (written / "0" / name).read_bytes()


def test_attributes_travel(written: Path, tmp_path: Path) -> None:
    sh(f"getfattr -R -d 0 > {tmp_path}/attributes", written)
    assert (tmp_path / "attributes").read_text().count("user.mq.queue_offset=") == 300


# programs that write where they like


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with holes and without, for programs to copy."""
    folder = tmp_path_factory.mktemp("originals")
    for name, head, size, tail in (("middle", b"head", 300_000, b"tail"), ("end", b"head", 300_000, b"")):
        (folder / name).write_bytes(head)
        os.truncate(folder / name, size)
        with (folder / name).open("ab") as file:
            file.write(tail)
    (folder / "hole").touch()
    os.truncate(folder / "hole", 300_000)
    (folder / "zeros").write_bytes(bytes(200_000) + b"x")
    (folder / "dense").write_bytes(os.urandom(300_000))
    (folder / "main.c").write_text("int main(void) { return 7; }\n")
    sh("truncate -s 700K disk && mkfs.ext4 -q disk && gcc -c main.c", folder)
    return folder


COPYING = [
    "cp {file} {append}",
    "cp --sparse=always {file} {append}",
    "cp --reflink=auto {file} {append}",
    "cp --sparse=never --preserve=timestamps {file} {append}",
    "dd if={file} of={append} bs=4k conv=sparse",
    "dd if={file} of={append} bs=4k conv=sparse,notrunc,fsync",
    "dd if={file} of={append} bs=1000 oflag=append conv=notrunc",
    "rsync --inplace {file} {append}",
    "rsync --inplace --sparse --times {file} {append}",
    "cat {file} > {append}",
    "cat {file} >> {append}",
    "tee {append} < {file} > /dev/null",
]
"""Programs that copy one file into another."""


@pytest.mark.parametrize("command", COPYING)
@pytest.mark.parametrize("file", ["middle", "end", "hole", "zeros", "dense", "disk"])
def test_a_copy_into_one_message_is_equal(queue: Path, originals: Path, command: str, file: str) -> None:
    sh(command.format(file=file, append=queue / "append@frame=file"), originals)
    assert bodies(queue) == [(originals / file).read_bytes()]


MAKING = [
    "gcc main.c -o {out}",
    "gcc -shared -fPIC main.c -o {out}",
    "ld -r main.o -o {out}",
    "objcopy main.o {out}",
    "tar --mtime=@0 -cf {out} middle dense",
    "gzip -nc dense > {out}",
    "sort main.c -o {out}",
    '{python} -c \'import wave; w = wave.open(open("{out}", "wb")); w.setparams((1, 2, 8000, 0, "NONE", ""));'
    ' w.writeframes(b"ab" * 100); w.writeframes(b"cd" * 9); w.close()\'',
    '{python} -c \'import zipfile; z = zipfile.ZipFile("{out}", "w"); z.write("dense"); z.write("middle"); z.close()\'',
]
"""Programs that write a file in any order: headers last, in pieces, with gaps."""


@pytest.mark.parametrize("command", MAKING)
def test_what_a_program_makes_in_one_message_is_what_it_makes_on_a_disk(
    queue: Path, originals: Path, tmp_path: Path, command: str
) -> None:
    for out in (queue / "append@frame=file", tmp_path / "out"):
        sh(command.format(out=out, python=sys.executable), originals)
    assert bodies(queue) == [(tmp_path / "out").read_bytes()]


REFUSED = [
    "ar rc {file} main.o",
    "install middle {file}",
    "rsync middle {file}",
    '{python} -c \'import sqlite3; sqlite3.connect(":memory:").backup(sqlite3.connect("{file}"))\'',
    "(cat zeros; cat dense) > {file}",
    "cp middle {lines}",
    "cp end {lines}",
    "cp hole {lines}",
    "cp --sparse=always zeros {lines}",
    "dd if=zeros of={lines} bs=4k conv=sparse",
    "dd if=dense of={lines} bs=1k count=1 seek=1",
    "dd if=dense of={lines} bs=1k count=1 seek=1 conv=notrunc",
    "rsync --inplace --sparse middle {lines}",
    "truncate -s 100 {lines}",
    "cp middle {json}",
    "dd if=zeros of={writes} bs=4k conv=sparse",
]
"""Programs that can't publish their output."""


@pytest.mark.parametrize("command", REFUSED)
def test_a_program_that_cannot_publish_what_it_means_hears_so(queue: Path, originals: Path, command: str) -> None:
    names = {
        "file": "append@frame=file",
        "lines": "append",
        "json": "append@format=json",
        "writes": "append@frame=write",
    }
    done = subprocess.run(
        ["sh", "-c", command.format(python=sys.executable, **{name: queue / append for name, append in names.items()})],
        cwd=originals,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode
    assert done.stderr
    assert all(body in (originals / "zeros").read_bytes() for body in bodies(queue))  # whole lines, a whole file


def test_what_is_mapped_outlives_whoever_would_truncate_it(queue: Path) -> None:
    body = b"a body of several pages " * 1_000
    publish(queue / "append", body + b"\n")
    message = queue / "0"
    with message.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[:5] == body[:5]
        assert refused_with(os.open, message, os.O_RDONLY | os.O_TRUNC) == errno.EPERM
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == len(body)
        assert mapped[:] == body


def test_programs_that_share_a_descriptor_publish_in_turn(queue: Path) -> None:
    sh("(echo one; printf 'two\\n'; sh -c 'echo three'; seq 4 5) > append", queue)
    sh("exec 3> append; for n in 6 7; do echo $n >&3; true; done; sh -c 'echo 8' >&3", queue)
    assert bodies(queue) == [b"one", b"two", b"three", b"4", b"5", b"6", b"7", b"8"]
