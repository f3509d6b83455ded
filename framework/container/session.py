"""A worker's seat: its place among the others, and the producer in whose transactions it commits.

The producer's transactional id is made of the place's slot, which no other member of the group
has. So making it aborts and fences whatever a dead worker left there, and a worker that has
slept while another got its slot is fenced twice: as a member, and as a producer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from strandline.changelog.broker import Broker
from strandline.changelog.client.producer import Producer
from strandline.changelog.client.transaction_state import ProducerPhase
from strandline.changelog.clock import Clock
from strandline.changelog.errors import Fenced, InvalidTxnState, Retriable
from strandline.changelog.records import TopicInfo
from strandline.framework.container.commit import COMMITS, Committing
from strandline.framework.container.group_membership import GroupMembership, Join
from strandline.framework.container.instance import TaskInstance
from strandline.framework.container.metrics import WorkerCounters
from strandline.framework.options import Options
from strandline.framework.topic import Topic

_log = logging.getLogger("strandline")

FRAME_BYTES = 16 << 20


class WorkerSession:
    """Empty until it is taken, and again when it is left. Raises what the broker does."""

    def __init__(
        self,
        app: str,
        topics: Sequence[Topic[Any, Any]],
        infos: Mapping[str, TopicInfo],
        broker: Broker,
        clock: Clock,
        options: Options,
        join: Join,
        counters: WorkerCounters,
    ) -> None:
        self.place: GroupMembership | None = None
        self._app = app
        self._topics = topics
        self._infos = infos
        self._broker = broker
        self._clock = clock
        self._options = options
        self._join = join
        self._counters = counters
        self._producer: Producer | None = None

    def take(self) -> GroupMembership:
        """The place; another one, and a new producer, where there is none any more."""
        if self.place is None:
            place = self._join()
            try:
                self._producer = self._producer_at(place)
            except BaseException:
                place.leave()
                raise
            self.place = place
        elif self._producer is None:
            self._producer = self._producer_at(self.place)
        return self.place

    def commit(self, instances: Sequence[TaskInstance]) -> None:
        """Commit what these have done, as the guarantee says."""
        assert self.place is not None
        assert self._producer is not None
        work = Committing(
            self._broker,
            self._producer,
            self.place.member,
            self._topics,
            self._infos,
            self._clock.now_ms,
        )
        with self._counters.committing():
            COMMITS[self._options.processing_guarantee](work, instances)

    def check(self, topic: str, columns: pa.RecordBatch) -> None:
        """Refuse a record that the log would refuse. Raises InvalidRecord."""
        if self._producer is not None:
            self._producer.check(topic, columns)

    def abort(self) -> bool:
        """Abort what is open; False if it cannot be known that it is aborted, or it is committed."""
        if self._producer is None:
            return False
        try:
            if self._producer.state is ProducerPhase.ABORTABLE:
                self._producer.abort_transaction()
            return self._producer.state is ProducerPhase.READY
        except (InvalidTxnState, Retriable):
            return False

    def renew(self) -> None:
        """Fence the producer as if it were a stranger's, whatever it has left open."""
        if self.place is not None:
            self._producer = None  # should there be no answer, `take` asks again
            self._producer = self._producer_at(self.place)

    def lost(self, error: Fenced, dropped: int) -> None:
        """Leave what another worker has by now; so many records were handled and not committed."""
        self._counters.fenced(error)
        member = "" if self.place is None else self.place.member.member_id
        _log.warning(
            "app %s: this worker was fenced; it drops what it had not committed (%d records) and "
            "joins again: %s",
            *(self._app, dropped, error),
            extra={"app": self._app, "member": member, "records": dropped, "error": error},
        )
        self.leave()

    def is_certain(self) -> bool:
        """Whether nobody else can hold what this worker holds; asked on any thread."""
        place = self.place
        return place is not None and place.is_certain()

    def leave(self) -> None:
        """Abort what is open, and let others have the place; harmless when repeated."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()
        place, self.place = self.place, None
        if place is not None:
            place.leave()

    def _producer_at(self, place: GroupMembership) -> Producer:
        return Producer(
            self._broker,
            transactional_id=f"{self._app}-{place.member.slot}",
            transaction_timeout_ms=self._options.transaction_timeout_ms,
            batch_bytes=FRAME_BYTES,
            clock=self._clock,
        )
