"""Fetches that read the log's files directly, if this process can access them.

A client on the owner's machine asks the owner only for the location of records (`RecordView`:
files, positions, end offset, aborted transactions). It reads and checks the records itself, like
the owner would. So no records are sent over the socket, and readers cost the owner little.

If reading fails, the client asks the owner for the records, and the owner's answer or error counts.
Reading fails for example if retention, a deleted topic or a new owner has removed a file.
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
    """Answers fetches from the files in `storage`, the folder of the log at `connection`."""

    def __init__(self, storage: Storage, connection: FlightConnection) -> None:
        self._storage = storage
        self._connection = connection

    def fetch(self, request: FetchRequest) -> dict[TopicPartition, Fetched]:
        """Return the answer to a fetch."""
        views = self._connection.locate(request)
        try:
            return {tp: v.fetch(self._storage, request.max_bytes) for tp, v in views.items()}
        except (FileNotFoundError, StorageFailed, CorruptLog):
            return self._connection.fetch(request)
