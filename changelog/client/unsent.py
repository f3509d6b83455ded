"""Unsent records of a producer, and the thread that sends them.

Only the thread with the lock `sending` calls the log. Without transactions this is usually a
background thread, which starts with the first record and ends when there is nothing to send; a
full buffer, a flush or a bulk append sends on the caller's thread. In a transaction there is no
background thread: the caller sends batches when they are full, and all of them at the commit.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pyarrow as pa

from strandline.changelog.client.accumulator import (
    Accumulator,
    OpenBatch,
    PendingRecord,
    RecordMetadata,
)
from strandline.changelog.client.sender import Outcome, OutgoingBatch, Sender
from strandline.changelog.errors import RequestTimedOut

IDLE_S = 1.0
"""Seconds for which the sending thread stays alive without records."""


class UnsentRecords:
    """Records that a producer has accepted and not sent yet. Thread-safe.

    `check` raises unless records may be accepted. `failed` is called with every failure, before
    the futures are completed. With `linger_ms` None there is no thread, as in transactions.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        check: Callable[[], None],
        failed: Callable[[BaseException], None],
        linger_ms: float | None,
        batch_bytes: int,
        buffer_bytes: int,
    ) -> None:
        self._sender = sender
        self._check = check
        self._failed = failed
        self._linger_s = None if linger_ms is None else linger_ms / 1000
        self._buffer_bytes = buffer_bytes
        self._in_flight = False
        self._hurry = False
        self._thread: threading.Thread | None = None
        self.waiting = Accumulator(batch_bytes)
        """Unsent records. Guarded by `lock`."""
        self.sending = threading.RLock()
        """Lock of the thread that calls the log. Acquire it before `lock`."""
        self.lock = threading.Condition()
        """Lock of the fields. Never held during a call to the log, so that `send` does not wait
        for one."""
        self.touched = False
        """True if data may have been sent to the log since this was last set to False."""

    def put(self, record: PendingRecord) -> Future[RecordMetadata]:
        """Add a record, and send if the buffer is full. Raises the errors of `check`."""
        with self.lock:
            self._check()
            future, full = self.waiting.add(record)
            over = self.waiting.size >= self._buffer_bytes
            if self._linger_s is not None and (full or self.waiting.size == record.size):
                self._wake(hurry=full)
        if over or (full and self._linger_s is None):
            self.drain()
        return future

    def flush(self, timeout: float | None) -> None:
        """Wait until no record is unsent or being sent. Raises RequestTimedOut."""
        if timeout is None or self._linger_s is None:
            self.drain()
            return
        with self.lock:
            self._wake(hurry=True)
            no_thread = self.waiting.size and self._thread is None
        if no_thread:
            self.drain()
        with self.lock:
            if not self.lock.wait_for(self._is_idle, timeout):
                raise RequestTimedOut(
                    f"flush: records are still being sent after {timeout:g} s; the producer "
                    f"keeps trying until delivery_timeout_ms is over"
                )

    def drain(self) -> None:
        """Send all records on this thread; failures go to `failed` and the futures."""
        with self.sending:
            with self.lock:
                batches = self.waiting.take()
                self._in_flight = bool(batches)
            try:
                self._send(batches)
            except BaseException as error:
                self._failed(error)
                for batch in batches:
                    batch.fail(error)
                raise
            finally:
                with self.lock:
                    self._in_flight = False
                    self.lock.notify_all()

    def transmit(self, outgoing: Sequence[OutgoingBatch]) -> Sequence[Outcome]:
        """Send batches, and report failures to `failed`. Requires `sending`."""
        self.touched = self.touched or bool(outgoing)
        outcomes = self._sender.send(outgoing)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self._failed(outcome)
        return outcomes

    def _send(self, batches: Sequence[OpenBatch]) -> None:
        """Build columns, send them, and complete the futures.

        The futures are completed last, because their callbacks may call the producer.
        """
        pieces: list[tuple[OpenBatch, int, OutgoingBatch]] = []
        broken: list[tuple[OpenBatch, Exception]] = []
        for whole in batches:
            whole.target.sticky.batch_sent(whole.partition)
            for batch, frames in _built(whole, broken):
                pieces += _pieces(batch, frames)
        for _, error in broken:
            self._failed(error)
        outcomes = self.transmit([outgoing for _, _, outgoing in pieces])
        for batch, error in broken:
            batch.fail(error)
        for (batch, first, outgoing), outcome in zip(pieces, outcomes, strict=True):
            _complete(batch, first, outgoing.columns.num_rows, outcome)

    # The thread -----------------------------------------------------------------------

    def _is_idle(self) -> bool:
        return not self.waiting.size and not self._in_flight

    def _wake(self, *, hurry: bool) -> None:
        """Start or wake the sending thread; `hurry` ends its linger. Requires `lock`."""
        self._hurry = self._hurry or hurry
        if self._thread is None and self.waiting.size:
            thread = threading.Thread(
                target=self._send_until_idle, name="strandline-producer", daemon=True
            )
            # No thread can be started while the interpreter shuts down; flush and close send then.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self.lock.notify_all()

    def _send_until_idle(self) -> None:
        while True:
            with self.lock:
                if not self.lock.wait_for(lambda: self.waiting.size, IDLE_S):
                    self._thread = None
                    return
                self.lock.wait_for(lambda: self._hurry, self._linger_s)
                self._hurry = False
            self.drain()


def _pieces(
    batch: OpenBatch, frames: Sequence[pa.RecordBatch]
) -> Iterator[tuple[OpenBatch, int, OutgoingBatch]]:
    """Yield each frame of a batch, with the index of its first record in the batch."""
    first = 0
    for frame in frames:
        yield batch, first, OutgoingBatch(batch.topic_partition, frame, batch.target.info.schema_id)
        first += frame.num_rows


def _built(
    batch: OpenBatch, broken: list[tuple[OpenBatch, Exception]]
) -> Iterator[tuple[OpenBatch, list[pa.RecordBatch]]]:
    """Build the columns of a batch, without the records that cannot be put into columns.

    The batch is halved until each bad record is alone; it is added to `broken`.
    """
    try:
        yield batch, batch.frames()
    except Exception as error:
        if len(batch.keys) == 1:
            broken.append((batch, error))
            return
        for half in batch.halves():
            yield from _built(half, broken)


def _complete(batch: OpenBatch, first: int, count: int, outcome: Outcome) -> None:
    if isinstance(outcome, Exception):
        batch.fail(outcome, first, count)
    else:
        batch.succeed(first, count, outcome.base_offset)
