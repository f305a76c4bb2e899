"""News: a follower wakes when the writer tells it, and not before."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from engine.files.news import News, NewsWatch


def has_news(watch: NewsWatch, wait_ms: int = 0) -> bool:
    poll = select.poll()
    poll.register(watch.descriptor, select.POLLIN)
    return bool(poll.poll(wait_ms))


def test_a_word_wakes_each_follower_until_it_has_heard_it(tmp_path: Path) -> None:
    news = News(tmp_path / "news")
    watches = [NewsWatch(tmp_path), NewsWatch(tmp_path)]
    assert not any(map(has_news, watches))
    news.tell()
    news.tell()
    assert all(has_news(watch, 10_000) for watch in watches)
    watches[0].drain()
    assert [has_news(watch) for watch in watches] == [False, True]
    news.close()
    again = News(tmp_path / "news")
    again.tell()
    assert has_news(watches[0], 10_000)
    again.close()
    for watch in watches:
        watch.close()


def test_a_folder_that_is_missing_has_no_news(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        NewsWatch(tmp_path / "missing")
