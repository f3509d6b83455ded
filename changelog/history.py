"""The history of a partition, and positions that name it.

A copy of a log folder, such as a restored backup, shares its history with the original up to the
time of the copy. After that, both may give the same offsets to different records. An offset alone
is therefore ambiguous, and a position also names the history in which it was reached.

An *incarnation* is one opening of a partition by an owner of the log, and has a random identifier.
The first append to a partition after an opening begins a new *leader epoch*, which is listed with
its incarnation. Two copies of a partition are never written by the same incarnation, and neither
are two topics of the same name. So if two partitions both list an incarnation, they are copies, and
identical up to the last record of that epoch that both of them have.

The position at an offset is named by the epoch of the record before that offset. It is valid if
the partition lists its incarnation, and if that epoch reaches to its offset.
`PartitionOffsets.divergence` decides this, with the functions of this module.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple, Protocol

UNKNOWN_EPOCH = -1
"""Leader epoch of a position whose last record was written in an unknown epoch (Kafka)."""

REBUILT = "rebuilt"
"""Incarnation of epochs whose manifest was lost and rebuilt from the frames. Frames contain only
the leader epoch, so in these epochs positions are compared by leader epoch alone."""

LOST = "lost"
"""Incarnation of offsets whose records were lost and removed by a repair. There are no records, so
a reader that had read further continues after them; state built from them must be rebuilt."""

MAX_EPOCHS = 2_000
"""Maximum number of epochs listed for a partition. Positions of older epochs are not trusted. With
an opening every minute, each with an append to the partition, the list covers 33 hours."""


class HistoryEpoch(NamedTuple):
    """A range of offsets of a partition, written by one incarnation of the log."""

    number: int
    """Leader epoch, which is stored in frames. It rises with every entry."""
    start: int
    """Offset of the first record."""
    incarnation: str = ""
    """Opening of the partition that wrote the range; empty if an early version without
    identifiers did."""


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
    """Return the epoch of the record before `offset`, which names the position at that offset.

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


def joined_epochs(earlier: Epochs, later: Epochs) -> Epochs:
    """Return the epochs of two fetches, the second of which continues the first.

    >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"))
    >>> joined_epochs(epochs, epochs[1:]) == epochs
    True
    """
    if not later:
        return earlier
    return (*(one for one in earlier if one.start < later[0].start), *later)


def with_epoch(epochs: Epochs, start: int, incarnation: str, oldest: int) -> Epochs:
    """Return the list of epochs with a new one of `incarnation` that begins at offset `start`.

    Empty epochs are left out, and so are those that ended before offset `oldest`, the first
    offset that the partition still has.

    >>> with_epoch((HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b")), 40, "c", 0)[1:]
    (HistoryEpoch(number=2, start=40, incarnation='c'),)
    """
    kept = [epoch for epoch in epochs if epoch.start < start]
    new = HistoryEpoch(epochs[-1].number + 1, start, incarnation)
    listed = [epoch for epoch, following in pairwise([*kept, new]) if following.start >= oldest]
    return (*listed[1 - MAX_EPOCHS :], new)


def is_cut_short(epochs: Epochs) -> bool:
    """Return True if older epochs may be missing because the list was too long."""
    return len(epochs) >= MAX_EPOCHS


def continues(epochs: Epochs, offset: int, incarnation: str) -> bool:
    """Return True if a reader at `offset`, whose position names `incarnation`, may continue.

    `epochs` must be those of the fetch itself (`Fetched.epochs`), so that they describe exactly
    the fetched records. They are empty if the log does not list any.

    >>> epochs = (HistoryEpoch(0, 0, "a"), HistoryEpoch(1, 40, "b"))
    >>> continues(epochs, 40, "a"), continues(epochs, 41, "a")
    (True, False)
    """
    if not epochs or offset == 0:
        return True
    return epoch_before(epochs, offset).incarnation in (incarnation, REBUILT)


def follows(earlier: Epochs, offset: int, later: Epochs) -> bool:
    """Return True if a fetch at `offset` continues the history of the fetch that ended there.

    `earlier` and `later` are the epochs of the two fetches.
    """
    return not earlier or continues(later, offset, epoch_before(earlier, offset).incarnation)


def shared_end(epochs: Epochs, end: int, position: LogPosition) -> int:
    """Return the offset up to which a partition can have the records of a position's history.

    `end` is the partition's high watermark. For an incarnation that the partition does not list,
    the result is the start of the partition's own epoch of the same number, because both
    histories numbered epochs alike as long as they were the same. Without incarnations (Kafka,
    old positions) the numbers decide.
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
    """Return True if the partition lists the incarnation of a position."""
    if not position.incarnation or not epochs:
        return True
    return any(_is_of(epoch, position) for epoch in epochs)


def _is_of(epoch: HistoryEpoch, position: LogPosition) -> bool:
    if epoch.incarnation == REBUILT:
        return epoch.number == position.leader_epoch
    return epoch.incarnation == position.incarnation


def _start_of(epochs: Epochs, number: int, end: int) -> int:
    """Return the start of the first epoch with at least this number; `end` if there is none."""
    return next((epoch.start for epoch in epochs if epoch.number >= number), end)


def _end_of_unnamed(epochs: Epochs, end: int) -> int:
    """Return the offset up to which a position without an incarnation may be trusted.

    Versions that did not name incarnations in positions did not list them either. A position
    without one that is after the first named epoch's start belongs to another history, or to
    epochs that were removed from the list.
    """
    for epoch in epochs:
        if epoch.incarnation not in ("", REBUILT):
            return 0 if is_cut_short(epochs) and epoch is epochs[0] else epoch.start
    return end
