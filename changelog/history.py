"""The history of a partition, and positions that name it.

A copy of a log folder, for example a backup that is put back, shares a history with the original
up to the moment of the copy. From then on both may give the same offsets to different records.
So an offset alone says nothing: a position also names the history that it was taken in.

An *incarnation* is one opening of a log by an owner, and has a random identifier. The first append
to a partition after an opening begins a new *leader epoch* there, with the incarnation that wrote
it. Two copies are never appended to by the same incarnation, so a partition that has an incarnation
in its list of epochs shares with any other copy that has it everything up to the last record which
both have of that epoch.

The position at an offset is named by the epoch of the record before that offset. It is valid where
the list of epochs has its incarnation, and where that epoch reaches to its offset. `divergence` is
the one function that decides this; `PartitionOffsets.divergence` calls it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol

UNKNOWN_EPOCH = -1
"""Leader epoch of a position whose last record was written in an epoch that is not known (Kafka)."""

REBUILT = "rebuilt"
"""Stands for the incarnations of an epoch whose manifest was lost, and rebuilt from the frames. They
name the leader epoch only, so there a position is told from another history by that alone."""

LOST = "lost"
"""Stands for the incarnations of offsets whose records a repair found to be gone. No record is there,
so a reader that had read further goes on behind them; what was built from them is built anew."""

MOST_EPOCHS = 2_000
"""Maximum number of epochs listed for a partition. A position of an older one is not trusted. With
an opening every minute, each of which appends to the partition, the list reaches back 33 hours."""


class HistoryEpoch(NamedTuple):
    """Offsets of a partition that were written by one incarnation of the log."""

    number: int
    """The leader epoch, which frames carry. It rises with every entry."""
    start: int
    """Offset of its first record."""
    incarnation: str = ""
    """Which opening of the log wrote it; empty if it was written by a version that had no such
    identifiers."""


Epochs = tuple[HistoryEpoch, ...]
"""The epochs of a partition, ascending."""

FIRST: Epochs = (HistoryEpoch(0, 0),)
"""The epochs of a partition that was never written to."""

_START = attrgetter("start")


class LogPosition(Protocol):
    """A position in a partition that names its history."""

    @property
    def topic_id(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def incarnation(self) -> str: ...


def epoch_before(epochs: Epochs, offset: int) -> HistoryEpoch:
    """Return the epoch of the record before `offset`: it names the position at that offset.

    A position before all listed epochs is named by the first one, whose history includes it.

    >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"))
    >>> epoch_before(epochs, 40).incarnation, epoch_before(epochs, 41).incarnation
    ('a', 'b')
    """
    if len(epochs) == 1:
        return epochs[0]
    return epochs[max(0, bisect_left(epochs, offset, key=_START) - 1)]


def epoch_of(epochs: Epochs, offset: int) -> HistoryEpoch:
    """Return the epoch of the record at `offset`; the first listed one for older records."""
    return epochs[max(0, bisect_right(epochs, offset, key=_START) - 1)]


def epochs_within(epochs: Epochs, offset: int, limit: int) -> Epochs:
    """Return the epochs that name the positions from `offset` to `limit`, both included.

    >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"), HistoryEpoch(2, 60, "c"))
    >>> [epoch.incarnation for epoch in epochs_within(epochs, 40, 60)]
    ['a', 'b']
    """
    if len(epochs) == 1:
        return epochs
    first = max(0, bisect_left(epochs, offset, key=_START) - 1)
    return epochs[first : max(first + 1, bisect_left(epochs, limit, key=_START))]


def with_epoch(epochs: Epochs, start: int, incarnation: str, oldest: int) -> Epochs:
    """Return the list of epochs after `incarnation` began a new one at offset `start`.

    Epochs that turn out to be empty are left out, and so are those that ended before offset
    `oldest`, the first one that the partition still has.

    >>> with_epoch((HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b")), 40, "c", 0)[1:]
    (HistoryEpoch(number=2, start=40, incarnation='c'),)
    """
    kept = [epoch for epoch in epochs if epoch.start < start]
    new = HistoryEpoch(epochs[-1].number + 1, start, incarnation)
    listed = [epoch for epoch, following in pairwise([*kept, new]) if following.start >= oldest]
    return (*listed[1 - MOST_EPOCHS :], new)


def is_cut_short(epochs: Epochs) -> bool:
    """Return whether older epochs may be missing from the list because it was too long."""
    return len(epochs) >= MOST_EPOCHS


def continues(epochs: Epochs, offset: int, incarnation: str) -> bool:
    """Return whether a reader at `offset`, whose position names `incarnation`, may read on.

    `epochs` are those that came with what was read from there (`Fetched.epochs`), so the answer
    is about the very records that were read. They are empty where a log does not list any.

    >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"))
    >>> continues(epochs, 40, "a"), continues(epochs, 41, "a")
    (True, False)
    """
    if not epochs or offset == 0:
        return True
    return epoch_before(epochs, offset).incarnation in (incarnation, REBUILT)


def shared_end(epochs: Epochs, end: int, position: LogPosition) -> int:
    """Return the offset up to which a partition can have the records of a position's history.

    `end` is the partition's high watermark. For an incarnation that the partition does not list
    the answer is where the partition's own epoch of the same number begins: both histories counted
    alike as long as they were one. Without incarnations (Kafka, old positions) numbers decide.
    """
    if position.incarnation:
        if epochs and epochs[-1].incarnation == position.incarnation:
            return end
        for epoch, following in pairwise([*epochs, HistoryEpoch(-1, end)]):
            if _is_of(epoch, position):
                return following.start
        return _start_of(epochs, position.leader_epoch, end)
    if position.leader_epoch == UNKNOWN_EPOCH:
        return end
    return min(_start_of(epochs, position.leader_epoch + 1, end), _end_of_unnamed(epochs, end))


def is_listed(epochs: Epochs, position: LogPosition) -> bool:
    """Return whether the history of a position is one that the partition remembers."""
    if not position.incarnation or not epochs:
        return True
    return any(_is_of(epoch, position) for epoch in epochs)


def _is_of(epoch: HistoryEpoch, position: LogPosition) -> bool:
    if epoch.incarnation == REBUILT:
        return epoch.number == position.leader_epoch
    return epoch.incarnation == position.incarnation


def _start_of(epochs: Epochs, number: int, end: int) -> int:
    """Where the first epoch with at least that number begins."""
    return next((epoch.start for epoch in epochs if epoch.number >= number), end)


def _end_of_unnamed(epochs: Epochs, end: int) -> int:
    """Up to where a position without an incarnation may be trusted.

    Versions that named no incarnation also listed none. Behind the first record of one that does,
    a position without one is of another history, or of a list that has lost its beginning.
    """
    for epoch in epochs:
        if epoch.incarnation not in ("", REBUILT):
            return 0 if is_cut_short(epochs) and epoch is epochs[0] else epoch.start
    return end
