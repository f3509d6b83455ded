"""A consumer's place in one partition."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from strandline.changelog.history import Epochs, continues, epoch_before
from strandline.changelog.records import Batch, CommittedOffset, Fetched


@dataclass(slots=True)
class FetchCursor:
    """Where the reader of one partition is, and what it has fetched ahead."""

    topic_id: str
    position: int = -1
    """The next offset to hand out; -1 as long as nobody knows."""
    fetch_position: int = -1
    """The next offset to fetch; what lies between is in `fetched`."""
    fetched: deque[Batch] = field(default_factory=deque)
    """The first may begin before `position`, if it was handed out in part."""
    paused: bool = False
    appeared_later: bool = False
    """Whether the partition was added after `subscribe`, so that all its records are new."""
    epochs: Epochs = ()
    """Epochs that name the positions of the last fetch, `position` and `fetch_position` among them;
    empty as long as nothing was fetched from there."""
    moves: int = 0
    """How often the position was changed other than record by record."""

    def seek(self, offset: int) -> None:
        self.position = self.fetch_position = offset
        self.epochs = ()
        self.fetched.clear()
        self.moves += 1

    def received(self, fetched: Fetched) -> None:
        """Take in what a fetch at `fetch_position` gave."""
        self.epochs = fetched.epochs
        self.fetched.extend(batch for batch in fetched.batches if len(batch))
        self.fetch_position = fetched.next_offset
        if not self.fetched:
            self.position = self.fetch_position

    def follows(self, fetched: Fetched) -> bool:
        """Return whether a fetch at `fetch_position` goes on in the history that was read before."""
        if not self.epochs:
            return True
        before = epoch_before(self.epochs, self.fetch_position)
        return continues(fetched.epochs, self.fetch_position, before.incarnation)

    def committed(self) -> CommittedOffset:
        """Return the position as a group commits it, with the name of its history."""
        if not self.epochs:
            return CommittedOffset(self.position, "", self.topic_id)
        epoch = epoch_before(self.epochs, self.position)
        return CommittedOffset(self.position, "", self.topic_id, epoch.number, epoch.incarnation)

    def rest_of_first(self) -> Batch:
        """Of the first fetched batch, what has not been handed out."""
        batch = self.fetched[0]
        if batch.base_offset >= self.position:
            return batch
        if batch.sparse_offsets is None:
            return batch.slice(self.position - batch.base_offset)
        return batch.slice(int(np.searchsorted(batch.offsets.to_numpy(), self.position)))

    def passed(self, offset: int) -> int:
        """The record at `offset` of the first batch is handed out; `moves` until now."""
        if offset < self.fetched[0].last_offset:
            self.position = offset + 1
        else:
            self.fetched.popleft()
            # Behind the last batch lie markers and aborted records that nobody is given.
            self.position = offset + 1 if self.fetched else self.fetch_position
        return self.moves

    def take(self, limit: int) -> Batch:
        """At most `limit` records of the first batch, handed out at once."""
        batch = self.rest_of_first()
        if len(batch) > limit:
            batch = batch.slice(0, limit)
        self.passed(batch.last_offset)
        self.moves += 1
        return batch
