"""A worker whose topic, or table, is deleted and created again while the worker is suspended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline import changelog
from strandline.changelog.log import Log
from tests.faust.faust_workers import append, eventually, in_folder, latest, worker

OLD, NEW = 40, 60
TABLE = "wordcount-word_counts-changelog"


@contextmanager
def old_posts(folder: Path) -> Iterator[Log]:
    """Open a log with the input of the app."""
    with changelog.open(folder / "log") as log:
        log.create_topic("posts", partitions=1)
        append(log, "posts", ["old"] * OLD)
        yield log


def test_no_record_of_the_new_topic_is_skipped(tmp_path: Path) -> None:
    """The worker stops with an error, and the next one reads the new topic from its start."""
    system = in_folder(tmp_path)
    with old_posts(tmp_path) as log:
        with worker("sample_word_count", system, tmp_path) as running:
            eventually(lambda: latest(log, TABLE) == {"old": OLD})
            running.freeze()
            log.delete_topic("posts")
            log.create_topic("posts", partitions=1)
            append(log, "posts", ["new"] * NEW)
            running.thaw()
            assert running.ended() != 0
            errors = ["deleted and created again", "there is no topic 'posts'"]
            assert any(error in running.text() for error in errors)
        with worker("sample_word_count", system, tmp_path) as running:
            eventually(lambda: latest(log, TABLE) == {"old": OLD, "new": NEW})
            assert running.stop() == 0


def test_a_worker_whose_table_was_replaced_ends_and_does_not_start(tmp_path: Path) -> None:
    system = in_folder(tmp_path)
    with old_posts(tmp_path) as log:
        with worker("sample_word_count", system, tmp_path) as running:
            eventually(lambda: latest(log, TABLE) == {"old": OLD})
            running.freeze()
            partitions = log.broker.topic(TABLE).partitions
            log.delete_topic(TABLE)
            log.create_topic(TABLE, partitions, config={"cleanup.policy": "compact"})
            append(log, "posts", ["new"] * NEW)
            running.thaw()
            assert running.ended() != 0
            assert "strandline reset wordcount" in running.text()
        assert latest(log, TABLE) == {}
        with worker("sample_word_count", system, tmp_path) as running:
            assert running.ended() != 0
            assert "strandline reset wordcount" in running.text()
