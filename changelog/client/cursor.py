"""A consumer's position and read-ahead buffer in one partition."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from strandline.changelog.arrays import as_numpy
from strandline.changelog.history import Epochs
from strandline.changelog.records import Batch, CommittedOffset, Fetched, named_offset


@dataclass(slots=True)
class FetchCursor:
    """Position of a consumer in one partition, and the batches fetched ahead of it."""

    topic_id: str
    position: int = -1
    """Next offset to return to the caller; -1 if not known yet."""
    fetch_position: int = -1
    """Next offset to fetch; records between `position` and it are in `fetched`."""
    fetched: deque[Batch] = field(default_factory=deque)
    """Fetched batches. The first may begin before `position`, if a part of it was returned."""
    paused: bool = False
    appeared_later: bool = False
    """True if the partition was added after `subscribe`, so that all its records are new."""
    epochs: Epochs = ()
    """Epochs that name the positions of the last fetch, including `position` and
    `fetch_position`; empty before the first fetch after a seek."""
    moves: int = 0
    """Number of position changes other than record by record."""

    def seek(self, offset: int) -> None:
        self.position = self.fetch_position = offset
        self.epochs = ()
        self.fetched.clear()
        self.moves += 1

    def received(self, fetched: Fetched) -> None:
        """Add the result of a fetch at `fetch_position`."""
        self.epochs = fetched.epochs
        self.fetched.extend(batch for batch in fetched.batches if len(batch))
        self.fetch_position = fetched.next_offset
        if not self.fetched:
            self.position = self.fetch_position

    def follows(self, fetched: Fetched) -> bool:
        """Return True if a fetch at `fetch_position` continues the history read so far."""
        return fetched.continues(self.topic_id, self.epochs, self.fetch_position)

    def committed(self) -> CommittedOffset:
        """Return the position with the epoch that names its history, for a commit."""
        return named_offset(self.position, self.topic_id, self.epochs)

    def rest_of_first(self) -> Batch:
        """Return the records of the first fetched batch that were not returned yet."""
        batch = self.fetched[0]
        if batch.base_offset >= self.position:
            return batch
        if batch.sparse_offsets is None:
            return batch.slice(self.position - batch.base_offset)
        return batch.slice(int(np.searchsorted(as_numpy(batch.offsets), self.position)))

    def passed(self, offset: int) -> int:
        """Move after the record at `offset` of the first batch, and return `moves`."""
        if offset < self.fetched[0].last_offset:
            self.position = offset + 1
        else:
            self.fetched.popleft()
            # After the last batch, skip markers and aborted records, which are never returned.
            self.position = offset + 1 if self.fetched else self.fetch_position
        return self.moves

    def take(self, limit: int) -> Batch:
        """Remove and return at most `limit` records of the first batch."""
        batch = self.rest_of_first()
        if len(batch) > limit:
            batch = batch.slice(0, limit)
        self.passed(batch.last_offset)
        self.moves += 1
        return batch
