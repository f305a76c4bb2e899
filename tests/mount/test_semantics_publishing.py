"""Promises 1.*: publishing (docs/semantics.md)."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.mount.harness import bodies, publish, refused_with, sh

WHOLE_WRITE_BYTES = 1_044_480


def test_a_line_is_a_message(queue: Path) -> None:
    """1.1 A line written to `append` is one message; its newline is not part of it."""
    sh("echo one >> append; printf 'two\\nthree\\n' >> append", queue)
    assert bodies(queue) == [b"one", b"two", b"three"]


def test_empty_lines_are_skipped(queue: Path) -> None:
    """1.2 Empty lines are skipped."""
    publish(queue / "append", b"\n", b"\none\n\n\ntwo\n\n", b"\n\n")
    assert bodies(queue) == [b"one", b"two"]


def test_an_unterminated_line_waits_for_fsync_or_close(queue: Path) -> None:
    """1.3 When a write returns, its complete lines are published. An unterminated line is published by `fsync` or
    when the file is closed (1.17)."""
    fd = os.open(queue / "append", os.O_WRONLY)
    os.write(fd, b"whole\nbegun, ")
    assert bodies(queue) == [b"whole"]
    os.write(fd, b"and ended")
    assert bodies(queue) == [b"whole"]
    os.fsync(fd)
    assert bodies(queue) == [b"whole", b"begun, and ended"]
    os.write(fd, b"last")
    os.close(fd)
    assert bodies(queue) == [b"whole", b"begun, and ended", b"last"]


def test_each_open_file_frames_its_own_bytes(queue: Path) -> None:
    """1.4 Each open file is split into lines by itself: lines of two writers never mix, however the writes cut them."""
    first, second = (os.open(queue / "append", os.O_WRONLY | os.O_APPEND) for _ in range(2))
    for letter in b"abc":
        os.write(first, bytes([letter]))
        os.write(second, bytes([letter - 32]))
    os.write(second, b"\n")
    os.write(first, b"\n")
    os.close(first)
    os.close(second)
    assert bodies(queue) == [b"ABC", b"abc"]


def test_a_file_is_a_message(queue: Path, tmp_path: Path) -> None:
    """1.5 `append@frame=file` makes one message of everything written between open and close. If nothing was
    written, there is no message."""
    picture = bytes(range(256)) * 1_200 + b"\n\nno newline at the end"
    (tmp_path / "picture").write_bytes(picture)
    sh(f"cp {tmp_path}/picture append@frame=file; : > append@frame=file", queue)
    assert bodies(queue) == [picture]


def test_a_write_is_a_message(queue: Path) -> None:
    """1.6 `append@frame=write` makes one message of each write, including its newlines."""
    publish(queue / "append@frame=write", b"one\ntwo\n", b"\n", b"\x00\xff")
    assert bodies(queue) == [b"one\ntwo\n", b"\n", b"\x00\xff"]


def test_a_line_of_json_is_a_record(queue: Path) -> None:
    """1.7 `append@format=json` takes each line as a JSON object: `body` or `body_base64`, `keys`, `tags`,
    `properties`."""
    record = '{"body": "a\\nb", "keys": ["K-1", "K-2"], "tags": "paid", "properties": {"colour": "r\u00f6d"}}\n'
    publish(queue / "append@format=json", record.encode(), b'{"body": ""}\n{"body_base64": "/wAK"}\n')
    assert bodies(queue) == [b"a\nb", b"", b"\xff\x00\n"]
    message = queue / "0"
    assert os.getxattr(message, "user.mq.keys") == b"K-1 K-2"
    assert os.getxattr(message, "user.mq.tags") == b"paid"
    assert os.getxattr(message, "user.mq.property.colour") == "r\u00f6d".encode()


def test_keys_and_tags_ride_on_the_name(queue: Path) -> None:
    """1.8 `append@tags=paid,keys=A+B` gives each message those tags and keys; values are percent-encoded."""
    publish(queue / "append@tags=paid,keys=A+B%2BC", b"one\ntwo\n")
    for offset in ("0", "1"):
        assert os.getxattr(queue / offset, "user.mq.tags") == b"paid"
        assert os.getxattr(queue / offset, "user.mq.keys") == b"A B+C"
    assert (queue.parent / "keys" / "B+C").read_bytes() == b"two"


def test_queues_take_turns(topic: Path) -> None:
    """1.9 A topic's `append` takes the topic's queues in turn, one for each write. A queue's `append` publishes to
    that queue."""
    publish(topic / "append", *(b"line %d\n" % number for number in range(8)))
    assert [len(bodies(topic / queue)) for queue in "0123"] == [2, 2, 2, 2]
    publish(topic / "2" / "append", b"here\n", b"and here\n")
    assert [len(bodies(topic / queue)) for queue in "0123"] == [2, 2, 4, 2]


def test_append_looks_empty(queue: Path) -> None:
    """1.10 `append` has size 0 and reads as empty. `>` truncates nothing."""
    publish(queue / "append", b"one\n")
    assert sh("echo two > append; cat append; stat -c %s append; wc -c < append", queue).split() == ["0", "0"]
    assert bodies(queue) == [b"one", b"two"]


def test_append_takes_attributes_and_keeps_none(queue: Path, tmp_path: Path) -> None:
    """1.11 Setting the times, the mode or (by name) the size of `append` succeeds and changes nothing, so that
    `touch`, `cp -p` and `rsync --inplace` work."""
    (tmp_path / "lines").write_bytes(b"one\ntwo\n")
    before = (queue / "append").stat()
    sh(f"touch append && chmod 600 append && cp -p {tmp_path}/lines append", queue)
    for name in ("append", "append@frame=file", "append@format=json"):
        os.truncate(queue / name, 100)
    sh(f"rsync --inplace --times {tmp_path}/lines append@tags=r", queue)
    after = (queue / "append").stat()
    assert (after.st_size, after.st_mode, after.st_mtime_ns) == (0, before.st_mode, before.st_mtime_ns)
    assert bodies(queue) == [b"one", b"two", b"one", b"two"]


def test_a_write_is_taken_whole_or_not_at_all(queue: Path) -> None:
    """1.12 A write of up to 1,044,480 bytes is taken whole or not at all. If one of its lines is bad, none is
    published."""
    good = b'{"body": "good"}\n'
    filler = b'{"body": "%s"}\n' % (b"x" * (WHOLE_WRITE_BYTES // 2 - len(good) - 13))
    lines = (good + filler) * 2
    lines += b"\n" * (WHOLE_WRITE_BYTES - len(lines))
    fd = os.open(queue / "append@format=json", os.O_WRONLY)
    spoilt = lines[:-20] + b'{"body": oh no}\n\n\n\n\n'
    assert len(spoilt) == len(lines) == WHOLE_WRITE_BYTES
    assert refused_with(os.write, fd, spoilt) == errno.EINVAL
    assert bodies(queue) == []
    assert os.write(fd, lines) == WHOLE_WRITE_BYTES
    os.close(fd)
    assert [len(body) for body in bodies(queue)] == [4, len(filler) - 13] * 2


def test_usual_tools_publish(queue: Path, tmp_path: Path) -> None:
    """1.13 `cp`, `dd`, `tee -a` and `cat big.log >> append` publish in the same way as a shell's `>>`."""
    lines = [b"%d: %s" % (number, b"x" * (number % 300)) for number in range(20_000)]
    (tmp_path / "big.log").write_bytes(b"\n".join(lines) + b"\n")
    sh(f"cat {tmp_path}/big.log >> append", queue)
    assert (queue.parent / "0.log").read_bytes() == (tmp_path / "big.log").read_bytes()
    (tmp_path / "few").write_bytes(b"4\n5\n6\n")
    (tmp_path / "last").write_bytes(b"7\n8")
    sh(f"seq 3 | tee -a append; dd if={tmp_path}/few of=append bs=1; cp {tmp_path}/last append", queue)
    assert (queue.parent / "0.log").read_bytes().splitlines()[20_000:] == [b"%d" % number for number in range(1, 9)]


def test_programs_that_buffer_publish_soon(queue: Path) -> None:
    """1.14 stat reports a block size of 4 KiB for `append`, so a program that sizes its buffer by it, as C's stdio
    does, publishes each time that buffer is full."""
    publish(queue / "append", b"one\n")
    for name in ("append", "append@tags=paid", "append@frame=file", "@first"):
        assert (queue / name).stat().st_blksize == 4096


def test_a_framed_file_is_a_file(queue: Path) -> None:
    """1.15 An open `append@frame=file` is a normal file: a program can write at any position, read back, truncate
    and extend it. Gaps are zeros. A sparse copy, a linker or an archiver therefore publishes the file it meant to
    write. With O_APPEND each write goes to the end."""
    fd = os.open(queue / "append@frame=file", os.O_RDWR)
    os.pwrite(fd, b"world", 100_000)
    os.pwrite(fd, b"hello, and more", 0)
    os.ftruncate(fd, 100_007)
    assert os.pread(fd, 200_000, 0) == b"hello, and more" + bytes(99_985) + b"world\0\0"
    os.ftruncate(fd, 100_003)
    os.close(fd)
    assert bodies(queue) == [b"hello, and more" + bytes(99_985) + b"wor"]
    fd = os.open(queue / "append@frame=file", os.O_WRONLY | os.O_APPEND)
    for position, data in enumerate((b"one, ", b"two, ", b"three")):
        os.pwrite(fd, data, position)
    os.close(fd)
    assert bodies(queue)[1:] == [b"one, two, three"]


def test_a_published_file_stays_as_it_is(queue: Path) -> None:
    """1.16 Data that `fsync` or a close has published is a message and never changes. A call that would change it
    through the same open file is EPERM. With O_APPEND, later data is another message."""
    for publish_now in (os.fsync, lambda fd: os.close(os.dup(fd))):
        fd = os.open(queue / "append@frame=file", os.O_WRONLY)
        os.write(fd, b"header, body")
        publish_now(fd)
        assert refused_with(os.pwrite, fd, b"HEADER", 0) == errno.EPERM
        assert refused_with(os.write, fd, b"more") == errno.EPERM
        assert [refused_with(os.ftruncate, fd, size) for size in (0, 5, 20)] == [errno.EPERM] * 3
        os.ftruncate(fd, len(b"header, body"))
        os.close(fd)
    fd = os.open(queue / "append@frame=file", os.O_WRONLY | os.O_APPEND)
    for body in (b"one", b"two"):
        os.write(fd, body)
        os.fsync(fd)
    os.close(fd)
    assert bodies(queue) == [b"header, body", b"header, body", b"one", b"two"]


def test_whose_close_publishes(queue: Path) -> None:
    """1.17 A close publishes what the closing process wrote last. Closing a descriptor that another process
    inherited publishes none of it."""
    for name in ("append", "append@frame=file"):
        fd = os.open(queue / name, os.O_WRONLY | os.O_APPEND)
        os.write(fd, b"half, ")
        subprocess.run(["true"], check=True)  # has the descriptor until it is executed
        subprocess.run(["true"], check=True, pass_fds=[fd])  # and this one to its end
        os.write(fd, b"whole")
        os.close(fd)
    assert bodies(queue) == [b"half, whole"] * 2
    fd = os.open(queue / "append", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"by us, ")
    subprocess.run(["printf", "and by a program"], stdout=fd, check=True)
    assert bodies(queue)[2:] == [b"by us, and by a program"]
    os.close(fd)


def test_the_end_of_an_open_append(queue: Path) -> None:
    """1.18 If an `append` is open without O_APPEND, `fstat` shows the bytes written to it, and `lseek` finds its end
    there."""
    for name in ("append", "append@frame=file", "append@frame=write"):
        fd = os.open(queue / name, os.O_WRONLY)
        for size in (6, 12):
            os.lseek(fd, 0, os.SEEK_END)
            os.write(fd, b"bytes\n")
            assert os.fstat(fd).st_size == os.lseek(fd, 0, os.SEEK_END) == size
        assert (queue / name).stat().st_size == 0
        os.close(fd)
    assert bodies(queue) == [b"bytes", b"bytes", b"bytes\nbytes\n", b"bytes\n", b"bytes\n"]
    fd = os.open(queue / "append", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"bytes\n")
    assert os.fstat(fd).st_size == 0
    os.close(fd)


def test_a_queue_is_not_copied_into_itself(queue: Path, new_topic: Callable[[], Path]) -> None:
    """1.19 stat shows the same inode number for `0/append` and `0.log`, and for `orders/append` and `orders.log`.
    `cp`, `grep` and `cat` therefore notice that their output is their input, and refuse. With `frame=file` such a
    copy comes to an end, and they make it. `cat` of coreutils 9.7 and later also asks for the output's size, and
    goes on copying."""
    publish(queue / "append", b"one\ntwo\n")
    folder = queue.parent
    cat_refuses = tuple(map(int, sh("cat --version", folder).split()[3].split(".")[:2])) < (9, 7)
    for name in ("append", "append@tags=copy", "append@frame=write"):
        assert (queue / name).stat().st_ino == (folder / "0.log").stat().st_ino
        for command in ("cp 0.log", "grep . 0.log >>", *(["cat 0.log >>"] if cat_refuses else [])):
            refused = ["sh", "-c", f"timeout 1 {command} 0/{name}"]
            done = subprocess.run(refused, cwd=folder, capture_output=True, check=False)
            assert done.returncode in (1, 2)
            assert done.stderr
    name = folder.name
    assert (folder / "append").stat().st_ino == (folder.parent / f"{name}.log").stat().st_ino
    refused = ["sh", "-c", f"timeout 1 grep . {name}.log >> {name}/append"]
    assert subprocess.run(refused, cwd=folder.parent, capture_output=True, check=False).returncode == 2
    assert bodies(queue) == [b"one", b"two"]
    sh("cat 0.log >> 0/append@frame=file; cp 0.log 0/append@frame=file", folder)
    assert bodies(queue)[2:] == [b"one\ntwo\n", b"one\ntwo\none\ntwo\n\n"]
    publish(queue.parent / "2" / "append", b"one\ntwo\n")
    other = new_topic()
    assert len({path.stat().st_ino for path in (queue / "append", other / "0/append", folder / "append")}) == 3
    sh(f"cat 2.log >> 1/append; cp 2.log {other}/0/append; grep two 2.log >> {other}/append", folder)
    assert bodies(folder / "1") == [b"one", b"two"]
    assert bodies(other / "0") == [b"one", b"two", b"two"]
