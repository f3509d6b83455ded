"""Connection of an executor slot to its driver, on the slot's side.

A driver that does not read must not block a worker. So messages wait in a bounded queue and are
dropped when it is full. Each drop is counted, and the number is sent when there is room again.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Sequence
from queue import Empty, Full, Queue, SimpleQueue
from typing import Self

from strandline.changelog.clock import SystemClock
from strandline.changelog.hosts import HostPort
from strandline.framework.peers import Deadline, send_all
from strandline.framework.spark.slot_messages import (
    SILENT_S,
    STOP,
    ConnectionRefused,
    LineStream,
    SlotEnd,
    SlotHello,
    SlotMessage,
    SlotNotes,
    SlotOutput,
    SlotStatus,
    close_now,
    encoded_message,
    proof,
)
from strandline.framework.supervisor.slots import WorkerRow

CONNECT_S = 20.0
"""Seconds in which the connection must be made."""
MAX_WAITING_MESSAGES = 1_000
"""Number of messages that wait for the driver before further ones are dropped."""
REPORT_S = 0.5
"""Seconds between two status reports."""
LAST_S = 5.0
"""Seconds for the last messages of a slot that ends."""


class DriverLink:
    """Connection to the driver, from `connected` until the end of `with`."""

    def __init__(self, connection: socket.socket, stream: LineStream) -> None:
        self.stops: SimpleQueue[int] = SimpleQueue()
        """Requests of the driver to end the worker; also one if the driver is gone."""
        self.is_lost = False
        """True if the driver is gone."""
        self._connection = connection
        self._stream = stream
        self._waiting: Queue[bytes | None] = Queue(MAX_WAITING_MESSAGES)
        self._dropped = 0
        self._clock = SystemClock()
        self._report_at = 0.0
        self._sending = threading.Thread(target=self._send, name="strandline-driver", daemon=True)

    @classmethod
    def connected(
        cls, driver: HostPort, secret: str, worker: int, attempt: int, host: str
    ) -> DriverLink:
        """Connect to the driver. Raises OSError and ConnectionRefused."""
        deadline = Deadline(CONNECT_S)
        connection = socket.create_connection(driver, timeout=CONNECT_S)
        try:
            stream = LineStream(connection)
            answer = proof(secret, stream.one(deadline).decode(errors="replace"))
            hello = SlotHello(worker, attempt, host, answer)
            send_all(connection, encoded_message(hello), deadline)
            return cls(connection, stream)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> Self:
        threading.Thread(target=self._receive, name="strandline-driver", daemon=True).start()
        self._sending.start()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(Full):
            self._waiting.put(None, timeout=LAST_S)
            self._sending.join(LAST_S)
        close_now(self._connection)

    def is_stopped(self, *, within_s: float) -> bool:
        """Wait for a request of the driver to end; return False if none comes in time."""
        with contextlib.suppress(Empty):
            self.stops.get(timeout=within_s)
            return True
        return False

    # Messages -------------------------------------------------------------------------

    def output(self, lines: Sequence[str]) -> None:
        """Send lines that the worker has printed."""
        self._put(SlotOutput(list(lines)))

    def notes(self, lines: Sequence[str]) -> None:
        """Send lines about the worker."""
        self._put(SlotNotes(list(lines)))

    def status(self, rows: Sequence[WorkerRow]) -> None:
        """Send the worker's status if a report is due."""
        now = self._clock.monotonic()
        if now >= self._report_at:
            self._report_at = now + REPORT_S
            for row in rows:
                self._put(SlotStatus(row))

    def end(self, row: WorkerRow, end: SlotEnd) -> None:
        """Send the last status and the result, and wait for room for them."""
        for message in (SlotStatus(row), end):
            with contextlib.suppress(Full):
                self._waiting.put(encoded_message(message), timeout=0 if self.is_lost else LAST_S)

    def _put(self, message: SlotMessage) -> None:
        try:
            if self._dropped:
                text = f"{self._dropped:,} messages were dropped, because the driver did not read"
                self._waiting.put_nowait(encoded_message(SlotNotes([text])))
                self._dropped = 0
            self._waiting.put_nowait(encoded_message(message))
        except Full:
            self._dropped += 1

    # Its own threads ------------------------------------------------------------------

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while (data := self._waiting.get()) is not None:
                send_all(self._connection, data, Deadline(SILENT_S))
            return
        self._lose()
        # Messages are dropped, so that `end` finds room for its own.
        while True:
            with contextlib.suppress(Empty):
                if self._waiting.get(timeout=SILENT_S) is None:
                    return

    def _receive(self) -> None:
        with contextlib.suppress(OSError, ConnectionRefused):
            for line in self._stream.lines():
                if line == STOP.strip():
                    self.stops.put(signal.SIGTERM)
        self._lose()

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.stops.put(signal.SIGTERM)
