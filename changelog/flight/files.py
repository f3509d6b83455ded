"""Fetching by reading the log's files, where they are within reach.

A process attached to the owner of a folder on its own machine asks the owner only where
records are (`View`: files, positions, the bound, what was aborted), and reads and checks them itself, as
the owner would. No record crosses the socket, and the owner does not pay for its readers.

Whatever goes wrong in reading (a file that retention, a deleted topic or a new owner has taken away
meanwhile, a folder that cannot be read), the owner is asked for the records themselves, and
its answer, or its error, holds.
"""

from __future__ import annotations

from strandline.changelog.errors import CorruptLog, StorageFailed
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.messages import (
    FetchRequest,
)
from strandline.changelog.records import Fetched, TopicPartition
from strandline.changelog.storage import Storage


class FileReader:
    """Answers fetches from the files in `storage`, the folder of the log behind `connection`."""

    def __init__(self, storage: Storage, connection: FlightConnection) -> None:
        self._storage = storage
        self._connection = connection

    def fetch(self, request: FetchRequest) -> dict[TopicPartition, Fetched]:
        """The answer to a fetch."""
        views = self._connection.locate(request)
        try:
            return {tp: v.fetch(self._storage, request.max_bytes) for tp, v in views.items()}
        except (FileNotFoundError, StorageFailed, CorruptLog):
            return self._connection.fetch(request)
