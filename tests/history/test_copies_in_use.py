"""A copy made between the commit of a transaction and its marker has a history of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from strandline import changelog
from strandline.changelog.embedded import open_folder
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.history import epoch_before
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.statestore.engine import StorePosition

TP = TopicPartition("t", 0)
COPIED_END = 1
"""End of the partition in the copy: the record of the transaction, without its marker."""


def opened(folder: Path) -> Log:
    return changelog.open(folder)


def positions(log: Log) -> list[StorePosition]:
    """Return the position at each offset of the partition, as a store keeps it."""
    found = log.offsets("t")[0]
    epochs = [epoch_before(found.epochs, offset) for offset in range(found.high_watermark + 1)]
    return [
        StorePosition(found.topic_id, epoch.number, offset, incarnation=epoch.incarnation)
        for offset, epoch in enumerate(epochs)
    ]


def trusted(log: Log, kept: list[StorePosition]) -> list[int]:
    """Return the offsets of the positions that a reader of the log may continue from."""
    found = log.offsets("t")[0]
    return [position.offset for position in kept if not found.divergence(position)]


@pytest.fixture
def lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A log that goes on with a record and then the marker, and a copy from before both."""
    folder, copy = tmp_path / "log", tmp_path / "copy"
    log = opened(folder)
    log.create_topic("t", partitions=1)
    producer = log.producer(transactional_id="x")
    producer.begin_transaction()
    producer.send("t", b"of both")
    append_marker = Partition.append_marker

    def copied_before(self: Partition, *args: Any, **options: Any) -> Any:
        if self.topic_partition == TP and not copy.exists():
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.sock"))
            with log.producer() as other:
                other.send("t", b"of the original")
        return append_marker(self, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append_marker", copied_before)
        producer.commit_transaction()
    producer.close()
    log.close()
    return folder, copy


def test_a_position_of_the_original_is_not_trusted_by_the_copy_after_its_end(
    lives: tuple[Path, Path],
) -> None:
    folder, copy = lives
    with opened(folder) as original:
        kept = positions(original)
        assert trusted(original, kept) == [0, 1, 2, 3]
    with opened(copy) as log:
        with log.producer() as producer:  # it grows past the original
            producer.send("t", b"of the copy")
            producer.send("t", b"of the copy")
        assert trusted(log, kept) == [*range(COPIED_END + 1)]


def test_a_copy_whose_first_opening_fails_is_still_a_copy_at_the_next(
    lives: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = lives
    with opened(folder) as original:
        kept = positions(original)

    def failing(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(open_folder.Coordinator, "recover", failing)
        opened(copy)
    with opened(copy) as log:
        assert trusted(log, kept) == [*range(COPIED_END + 1)]
    with opened(copy) as log:
        mine = positions(log)
    with opened(copy) as log:
        assert trusted(log, mine) == [position.offset for position in mine]


def test_a_log_that_was_killed_there_writes_its_marker_in_the_same_history(
    lives: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers may have seen the marker before a power cut lost it."""
    _, copy = lives
    with monkeypatch.context() as patched:
        patched.setattr("strandline.changelog.embedded.folder.FolderMeta.is_of", lambda *_: True)
        with opened(copy) as log:
            assert len(log.offsets("t")[0].epochs) == 1
