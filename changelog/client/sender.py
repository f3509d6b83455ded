"""A producer's calls to the log: identity, sequence numbers, retries.

The rules of idempotence (KIP-98, KIP-360, KIP-890):

- Sequence numbers count the records of one partition from 0, wrap after 2**31 - 1, and start
  again with each identity.
- A retry has the sequence number of the first attempt, so the log recognizes the batch.
- A batch that was rejected before it was written (InvalidRequest, DiskFull) uses up no sequence
  numbers.
- After a batch with an unknown outcome, its sequence number can neither be reused nor skipped:
  a plain producer continues with a new identity, a transaction must be aborted.
- The log remembers the last five batches per producer and partition, so a call has at most five
  batches for one partition.

Not thread-safe: the producer calls it from one thread at a time.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import (
    NO_EFFECT_ERRORS,
    InvalidRequest,
    OutOfOrderSequence,
    RequestTimedOut,
    Retriable,
    StrandlineError,
)
from strandline.changelog.groups import GroupMember
from strandline.changelog.producer_state import REMEMBERED_BATCHES, advance
from strandline.changelog.records import (
    Append,
    Appended,
    CommittedOffset,
    ProducerIdentity,
    TopicPartition,
)

T = TypeVar("T")

FIRST_PAUSE_S = 0.01
"""Seconds to wait after a first failed attempt; the pause doubles with each attempt."""
LONGEST_PAUSE_S = 1.0
CALL_BYTES = 64 << 20
"""Approximate maximum bytes of one call to the log."""


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """A batch for one partition, small enough for one frame."""

    topic_partition: TopicPartition
    columns: pa.RecordBatch
    schema_id: int = 0


Outcome = Appended | Exception
"""Offsets of an appended batch, or the reason why it was not or may not have been appended."""


class Sender:
    """The calls of one producer to the log."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        *,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        delivery_timeout_ms: int,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._sequences: dict[TopicPartition, int] = {}
        self.identity: ProducerIdentity | None = None
        """Identity of the producer; None until `init`, and after an unknown outcome."""

    def init(self) -> ProducerIdentity:
        """Return the identity; request one if there is none.

        Raises Retriable after the delivery timeout.
        """
        if self.identity is None:
            self._use(
                self._retried(
                    lambda: self._broker.init_producer(
                        self._transactional_id, timeout_ms=self._transaction_timeout_ms
                    ),
                    "init_producer",
                )
            )
        assert self.identity is not None
        return self.identity

    def forget(self) -> None:
        """Discard the identity; the next call requests a new one."""
        self.identity = None
        self._sequences = {}

    def send(self, batches: Sequence[OutgoingBatch]) -> Sequence[Outcome]:
        """Append batches in order, and return an outcome for each.

        In a transaction nothing is sent after the first failure: the calls after it fail with the
        same error.
        """
        outcomes: list[Outcome] = []
        for call in _calls(batches):
            failed = next((o for o in outcomes if isinstance(o, Exception)), None)
            if failed is not None and self._transactional_id is not None:
                outcomes += [failed] * len(call)
            else:
                outcomes += self._send_call(call)
        return outcomes

    def add_offsets(
        self, member: GroupMember, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        """Add consumer offsets to the transaction."""
        identity = self.init()
        self._retried(
            lambda: self._broker.add_offsets(
                identity, member.group, offsets, member_id=member.member_id
            ),
            "add_offsets",
        )

    def end_transaction(self, *, commit: bool) -> None:
        """Commit or abort, and use the identity that the log returns. Raises the log's errors."""
        identity = self.init()
        self._use(
            self._retried(
                lambda: self._broker.end_transaction(identity, commit=commit), "end_transaction"
            )
        )

    # Appending ------------------------------------------------------------------------

    def _send_call(self, batches: Sequence[OutgoingBatch]) -> Sequence[Outcome]:
        try:
            self.init()
            return self._attempt(batches, again=False)
        except _Refused as refused:
            if len(batches) > 1 and self._transactional_id is None:
                return self._one_by_one(batches)
            return [refused.cause] * len(batches)
        except Exception as error:
            if self._transactional_id is None:
                self.forget()
            return [error] * len(batches)
        except BaseException:
            self.forget()  # interrupted: the outcome is unknown
            raise

    def _one_by_one(self, batches: Sequence[OutgoingBatch]) -> list[Outcome]:
        """Send the batches of a rejected call one by one.

        Batches before the rejected one are already in the log; it reports them as duplicates.
        """
        outcomes: list[Outcome] = []
        unknown: dict[TopicPartition, Exception] = {}
        again = True
        for batch in batches:
            if batch.topic_partition in unknown:
                outcomes.append(unknown[batch.topic_partition])
                continue
            try:
                outcomes += self._attempt([batch], again=again)
            except _Refused as refused:
                outcomes.append(refused.cause)
                again = False  # this batch ended the call, so no later one was sent before
            except Exception as error:
                unknown[batch.topic_partition] = error
                outcomes.append(error)
        if unknown:
            self.forget()
        return outcomes

    def _attempt(self, batches: Sequence[OutgoingBatch], *, again: bool) -> list[Appended]:
        """Append batches in one call, which is retried. `again`: they were sent before.

        Raises _Refused if the rejected batch was certainly not written; after any other exception
        the outcome is unknown.
        """
        appends = self._numbered(batches)
        doing = f"appending to {batches[0].topic_partition}"
        attempts = _Attempts(self._clock, self._delivery_timeout_ms)
        try:
            appended = attempts.until_answered(lambda: self._broker.append(appends), doing)
        except (InvalidRequest, *NO_EFFECT_ERRORS) as error:
            if not attempts.failed:
                raise _Refused(error) from error
            raise RequestTimedOut(
                f"{doing}: the log was out of reach, and refused the batch afterwards ({error}); "
                f"it may be in the log or not"
            ) from error
        if not (again or attempts.failed) and any(answer.duplicate for answer in appended):
            raise OutOfOrderSequence(
                f"{doing}: the log takes a new batch for one that it has; two producers share "
                f"the identity {self.identity}"
            )
        self._sequences.update(_ends(appends))
        return appended

    def _numbered(self, batches: Sequence[OutgoingBatch]) -> list[Append]:
        following: dict[TopicPartition, int] = {}
        appends = []
        for batch in batches:
            tp = batch.topic_partition
            sequence = following.get(tp, self._sequences.get(tp, 0))
            following[tp] = advance(sequence, batch.columns.num_rows)
            appends.append(
                Append(
                    tp.topic,
                    tp.partition,
                    batch.columns,
                    self.identity,
                    sequence,
                    self._transactional_id is not None,
                    batch.schema_id,
                )
            )
        return appends

    # Retrying -------------------------------------------------------------------------

    def _use(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self._sequences = {}

    def _retried(self, call: Callable[[], T], doing: str) -> T:
        return _Attempts(self._clock, self._delivery_timeout_ms).until_answered(call, doing)


class _Refused(Exception):
    """The log rejected a call, and did not write the rejected batch."""

    def __init__(self, cause: StrandlineError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Attempts:
    """The attempts of one call: retries with growing pauses, until a timeout."""

    def __init__(self, clock: Clock, timeout_ms: int) -> None:
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._start = clock.monotonic()
        self._waited_s = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.failed = False
        """True if an attempt ended with an unknown outcome."""

    def until_answered(self, call: Callable[[], T], doing: str) -> T:
        """Repeat `call` while it raises Retriable, and return its result."""
        while True:
            try:
                return call()
            except Retriable as error:
                self._pause_or_give_up(error, doing)

    def _pause_or_give_up(self, error: Retriable, doing: str) -> None:
        """Wait before the next attempt. Raises RequestTimedOut when the time is over."""
        self.failed = True
        # Count the pauses too, because a test's manual clock may not advance.
        elapsed = max(self._clock.monotonic() - self._start, self._waited_s)
        if elapsed >= self._timeout_s:
            raise RequestTimedOut(
                f"{doing}: no answer within delivery_timeout_ms = {self._timeout_s * 1000:g} "
                f"(last: {error}); whether the log has it is not known"
            ) from error
        threading.Event().wait(self._pause_s)
        self._waited_s += self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)


def _calls(batches: Sequence[OutgoingBatch]) -> Iterator[list[OutgoingBatch]]:
    """Group batches into calls, in order, such that the log recognizes each retried batch."""
    call: list[OutgoingBatch] = []
    size = 0
    of_partition: Counter[TopicPartition] = Counter()
    for batch in batches:
        number = of_partition[batch.topic_partition]
        if call and (size > CALL_BYTES or number == REMEMBERED_BATCHES):
            yield call
            call, size, of_partition = [], 0, Counter()
        call.append(batch)
        size += batch.columns.nbytes
        of_partition[batch.topic_partition] += 1
    if call:
        yield call


def _ends(appends: Sequence[Append]) -> dict[TopicPartition, int]:
    """Return the next sequence number of each partition."""
    return {
        TopicPartition(a.topic, a.partition): advance(a.base_sequence, a.columns.num_rows)
        for a in appends
    }
