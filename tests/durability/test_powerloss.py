"""Power cuts, the short form: 200 images, and the recorder's own claims."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from engine.files.disk import replace_file, write_durably
from engine.files.file_queue import FileQueue
from tests.durability.powerloss import Cuts, Tally, cut_power
from tests.durability.recorder import Recorder, build_image

IMAGES = 200


def test_no_power_cut_costs_an_acknowledged_message(tmp_path: Path) -> None:
    tally = cut_power(tmp_path, IMAGES, seed=100)
    assert tally.findings == []
    assert tally.images == IMAGES
    assert tally.acknowledged_messages_required > IMAGES
    assert tally.other_messages_found_whole > 0, "no image kept anything that was not synced"
    assert tally.refused_syncs > 0, "no flush failed"


class Liar(Recorder):
    """Says that it synced a file, and did nothing."""

    def sync(self, descriptor: int, path: Path) -> None:
        self.note("nothing was done")


def test_a_disk_that_only_claims_to_sync_is_found_out(tmp_path: Path) -> None:
    tally = Tally()
    Cuts(tmp_path, tally, Liar).run(seed=1, images=20)
    assert tally.lost > 0


def test_a_process_that_believes_pages_whose_flush_failed_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileQueue, "write_again", lambda files, ranges, end: None)
    tally = Tally()
    Cuts(tmp_path, tally).run(seed=3, images=10, rounds=10)
    assert tally.refused_syncs > 0
    assert tally.lost > 0


def test_a_page_whose_write_back_failed_is_on_disk_once_it_is_written_again_and_synced(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with closing(Recorder(root)) as recorder:
        write_durably(root / "a", b"a" * 4096, recorder)
        recorder.sync_directory(root)
        with (root / "a").open("r+b", buffering=0) as file:
            file.write(b"b" * 4096)
            recorder.refuse_next_sync(random.Random(1))
            with pytest.raises(OSError, match="refused"):
                recorder.sync(file.fileno(), root / "a")
            recorder.sync(file.fileno(), root / "a")
            assert {image["a"] for image in images(recorder, tmp_path / "clean")} == {b"a" * 4096}
            recorder.write_again(file.fileno(), root / "a", 0, 100)
            recorder.note("written again")
            assert {b"a" * 4096, b"b" * 4096} <= {image["a"] for image in images(recorder, tmp_path / "dirty")}
            recorder.sync(file.fileno(), root / "a")
            assert {image["a"] for image in images(recorder, tmp_path / "synced")} == {b"b" * 4096}


def images(recorder: Recorder, folder: Path, count: int = 60) -> list[dict[str, bytes]]:
    """The contents of images of the newest moment."""
    found = []
    folder.mkdir(exist_ok=True)
    for number in range(count):
        target = folder / f"image-{number}"
        build_image(recorder.moments[-1], random.Random(number), target)
        found.append({path.name: path.read_bytes() for path in target.rglob("*") if path.is_file()})
    return found


def test_what_was_synced_with_its_directory_is_in_every_image(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with closing(Recorder(root)) as recorder:
        write_durably(root / "a", b"old", recorder)
        recorder.sync_directory(root)
        assert images(recorder, tmp_path) == [{"a": b"old"}] * 60


def test_a_name_that_was_not_synced_may_be_missing_and_bytes_may_be_torn(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with closing(Recorder(root)) as recorder:
        write_durably(root / "a", b"a" * 8192, recorder)
        recorder.sync_directory(root)
        (root / "a").write_bytes(b"b" * 8192)
        (root / "new").touch()
        recorder.note("written, not synced")
        found = images(recorder, tmp_path)
        assert {"new" in image for image in found} == {True, False}
        pages = {image["a"][start : start + 4096] for image in found for start in (0, 4096)}
        assert {b"a" * 4096, b"b" * 4096} < pages
        assert any(b"a" * 512 in page and b"b" * 512 in page for page in pages), "no page is torn"


def test_a_replaced_file_is_whole_in_every_image(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with closing(Recorder(root)) as recorder:
        write_durably(root / "a", b"old" * 4000, recorder)
        recorder.sync_directory(root)
        replace_file(root / "a", b"new" * 4000, recorder)
        recorder.moments.pop()  # back to before the directory was synced
        assert {image["a"] for image in images(recorder, tmp_path)} == {b"old" * 4000, b"new" * 4000}
