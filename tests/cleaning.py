"""Clean a partition when a test says so, for tests that read a topic while it is cleaned."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from strandline.changelog.embedded.cleaning import cleaner, look, schedule
from strandline.changelog.embedded.cleaning.passes import PassResult
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.embedded.partition import Partition
from strandline.changelog.records import PartitionOffsets, TopicPartition
from tests.state.kit import Change, Changelog

MEMORY = 1 << 20
RETENTION_MS = 1_000
"""Milliseconds. `delete.retention.ms` of the topics that are cleaned here."""


class CutShort(Exception):
    """Raised by a test to end a pass before it is complete."""


def ignore(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """Let the log report 0 for a field of PartitionOffsets, so that readers ignore it."""
    told = Owner.offsets
    monkeypatch.setattr(
        Owner,
        "offsets",
        lambda *args: {tp: replace(ends, **{field: 0}) for tp, ends in told(*args).items()},
    )


@contextmanager
def little_memory(memory: int) -> Iterator[None]:
    """Give each pass of a cleaner `memory` bytes, 48 per key, and few enough marks to spill keys.

    A log's settings do not allow so little memory.
    """

    def clean(partition: Partition, **given: Any) -> PassResult:
        return cleaner.clean(partition, **{**given, "memory": memory})

    with (
        mock.patch.object(schedule, "clean", clean),
        mock.patch.object(look, "MAX_BITS_PER_BYTE", 100),
    ):
        yield


def close_segment(owner: Owner, tp: TopicPartition) -> None:
    """Roll the partition, if its active segment is not empty, so that it can be cleaned."""
    partition = owner._log.partition(tp)
    with partition.lock:
        # One byte per segment: each is rewritten by itself. Topic settings do not allow so little.
        partition.config = copy(partition.config)
        object.__setattr__(partition.config, "segment_bytes", 1)
        object.__setattr__(partition.config, "delete_retention_ms", RETENTION_MS)
        if partition.segments and partition.segments[-1].size:
            partition.roll()


def clean(
    owner: Owner, tp: TopicPartition, *, purge: bool = False, frames: int | None = None
) -> PassResult:
    """Run one pass over the closed segments, with `changelog.embedded.cleaning.cleaner.clean`.

    `purge` runs it with a clock that is RETENTION_MS ahead, so that tombstones left by earlier
    passes are removed. With `frames` the pass raises CutShort after that many frames. Replaced
    segments are deleted at once.
    """
    partition = owner._log.partition(tp)
    left = iter(range(frames)) if frames is not None else None

    def pace(nbytes: int) -> None:
        if nbytes and left is not None and next(left, None) is None:
            raise CutShort

    now_ms = partition.context.clock.now_ms()
    with partition.cleaning:
        done = cleaner.clean(
            partition,
            memory=MEMORY,
            pace=pace,
            now_ms=now_ms + RETENTION_MS + 1 if purge else now_ms,
        )
    with owner._log._admin_lock:  # as the log deletes them: not while a pin is made
        for segment in done.replaced:
            segment.remove()
    return done


class Segments(Changelog):
    """A changelog with one segment per commit, and a model of the state that it holds."""

    def __init__(self, owner: Owner | None = None) -> None:
        super().__init__(owner=owner)
        self.model: dict[str, int] = {}
        self.ends = [0]
        self.models: list[dict[str, int]] = [{}]
        """State after each of `ends`."""

    def change(self, key: str, value: int | None) -> None:
        """Commit one change of a key; None deletes it."""
        data: Change = (b"Q" + key.encode(), None if value is None else bytes((value,)))
        end = self.append([data])
        close_segment(self.owner, self.partition)
        if value is None:
            self.model.pop(key, None)
        else:
            self.model[key] = value
        self.ends.append(end)
        self.models.append(dict(self.model))

    def abort_one(self) -> None:
        """Write a transaction and abort it."""
        self.append([(b"Qaborted", b"\x01")], commit=False)
        close_segment(self.owner, self.partition)

    def clean(self, *, purge: bool = False) -> int:
        """Run one pass. Return the number of tombstones removed."""
        return clean(self.owner, self.partition, purge=purge).tally.tombstones

    def delete_and_purge(self, key: str) -> None:
        """Delete a key, and clean again after `delete.retention.ms`, so that its tombstone is
        removed."""
        self.change(key, None)
        self.abort_one()
        self.clean()
        assert self.clean(purge=True) == 1

    def as_of(self, offset: int) -> dict[str, int]:
        """Return the state as of an offset (exclusive)."""
        return self.models[bisect_right(self.ends, offset) - 1]

    @property
    def log(self) -> PartitionOffsets:
        return self.owner.offsets([self.partition])[self.partition]
