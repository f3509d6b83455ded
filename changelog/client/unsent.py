"""Records that wait to be sent, and who sends them when.

One thread at a time talks to the log: whoever holds `sending`. Without transactions that is as
a rule a thread of the outbox, which starts with the first record and ends when there is nothing
to do; a full buffer, a flush or a bulk append sends on the caller's own thread. In a
transaction there is no such thread: batches go when they are full, or when they must.
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
"""How long the sending thread stays when there is nothing to send."""


class UnsentRecords:
    """What a producer has taken in and not sent yet. Thread-safe.

    `check` raises unless records may be taken in; `failed` is told of every failure, before
    the futures are. `linger_ms` None: no thread, as in transactions.
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
        """Guarded by `lock`."""
        self.sending = threading.RLock()
        """Held by the thread that talks to the log; taken before `lock`."""
        self.lock = threading.Condition()
        """Never held while the log is called."""
        self.touched = False
        """Whether the log may have got anything since this was last set to False."""

    def put(self, record: PendingRecord) -> Future[RecordMetadata]:
        """Take in a record, and send if there is too much waiting. Raises what `check` does."""
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
        """Return when nothing waits or is on its way. Raises RequestTimedOut."""
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
                    f"flush: records are still on their way after {timeout:g} s; they are tried "
                    f"until delivery_timeout_ms is over"
                )

    def drain(self) -> None:
        """Send all that waits, on this thread; failures go to `failed` and the futures."""
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
        """Send batches, telling `failed` of failures. Under `sending`."""
        self.touched = self.touched or bool(outgoing)
        outcomes = self._sender.send(outgoing)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                self._failed(outcome)
        return outcomes

    def _send(self, batches: Sequence[OpenBatch]) -> None:
        """Build columns, send, and only then complete the futures, whose callbacks may call us."""
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
        """Under `lock`: have the thread look at what waits."""
        self._hurry = self._hurry or hurry
        if self._thread is None and self.waiting.size:
            thread = threading.Thread(
                target=self._send_until_idle, name="strandline-producer", daemon=True
            )
            # None can be started once the interpreter is ending; then flush and close send.
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
    """Each frame of a batch, with the number of its first record in the batch."""
    first = 0
    for frame in frames:
        yield batch, first, OutgoingBatch(batch.topic_partition, frame, batch.target.info.schema_id)
        first += frame.num_rows


def _built(
    batch: OpenBatch, broken: list[tuple[OpenBatch, Exception]]
) -> Iterator[tuple[OpenBatch, list[pa.RecordBatch]]]:
    """Columns of a batch; a record that cannot be in them is put aside, the others go on."""
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
