"""Cleaning when a test says so, for tests of those who read a topic while it is cleaned."""

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
"""`delete.retention.ms` of the topics that are cleaned here."""


class CutShort(Exception):
    """A pass ends before it is done."""


def ignore(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """The log does not tell how far that is."""
    told = Owner.offsets
    monkeypatch.setattr(
        Owner,
        "offsets",
        lambda *args: {tp: replace(ends, **{field: 0}) for tp, ends in told(*args).items()},
    )


@contextmanager
def little_memory(memory: int) -> Iterator[None]:
    """A log's cleaner has so many bytes for each pass, 48 a key, and bits enough to spill keys.

    A log cannot be told to have as little.
    """

    def clean(partition: Partition, **given: Any) -> PassResult:
        return cleaner.clean(partition, **{**given, "memory": memory})

    with (
        mock.patch.object(schedule, "clean", clean),
        mock.patch.object(look, "MAX_BITS_PER_BYTE", 100),
    ):
        yield


def close_segment(owner: Owner, tp: TopicPartition) -> None:
    """What has been appended by now is a segment of its own, and stays one."""
    partition = owner._partition(tp)
    with partition.lock:
        # Each is rewritten by itself. A topic may not have so little.
        partition.config = copy(partition.config)
        object.__setattr__(partition.config, "segment_bytes", 1)
        object.__setattr__(partition.config, "delete_retention_ms", RETENTION_MS)
        if partition.segments and partition.segments[-1].size:
            partition.roll()


def clean(
    owner: Owner, tp: TopicPartition, *, purge: bool = False, frames: int | None = None
) -> PassResult:
    """One pass over what is closed; see `changelog.embedded.cleaning.cleaner.clean`.

    With `purge` it goes by a clock that is RETENTION_MS ahead, so the tombstones that earlier passes have
    left are removed. After so many `frames` it is cut short. What was replaced is deleted at once.
    """
    partition = owner._partition(tp)
    left = iter(range(frames)) if frames is not None else None

    def pace(nbytes: int) -> None:
        if nbytes and left is not None and next(left, None) is None:
            raise CutShort

    now_ms = partition.environment.clock.now_ms()
    with partition.cleaning:
        done = cleaner.clean(
            partition,
            memory=MEMORY,
            pace=pace,
            now_ms=now_ms + RETENTION_MS + 1 if purge else now_ms,
        )
    for segment in done.replaced:
        segment.remove()
    return done


class Segments(Changelog):
    """A changelog with a segment for each commit, and what it comes to."""

    def __init__(self, owner: Owner | None = None) -> None:
        super().__init__(owner=owner)
        self.model: dict[str, int] = {}
        self.ends = [0]
        self.models: list[dict[str, int]] = [{}]
        """As of each of `ends`."""

    def change(self, key: str, value: int | None) -> None:
        """One commit."""
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
        """A transaction that comes to nothing."""
        self.append([(b"Qaborted", b"\x01")], commit=False)
        close_segment(self.owner, self.partition)

    def clean(self, *, purge: bool = False) -> int:
        """How many tombstones were removed."""
        return clean(self.owner, self.partition, purge=purge).tally.tombstones

    def delete_and_purge(self, key: str) -> None:
        """A key is deleted, and delete.retention.ms passes."""
        self.change(key, None)
        self.abort_one()
        self.clean()
        assert self.clean(purge=True) == 1

    def as_of(self, offset: int) -> dict[str, int]:
        """What all that was committed before `offset` comes to."""
        return self.models[bisect_right(self.ends, offset) - 1]

    @property
    def log(self) -> PartitionOffsets:
        return self.owner.offsets([self.partition])[self.partition]
