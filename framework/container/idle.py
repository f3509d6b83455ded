"""Whether there is nothing left to do, anywhere in the app."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from changelog.broker import Broker
from changelog.records import TopicPartition
from framework.container.instance import TaskInstance


def all_is_committed(
    broker: Broker,
    app: str,
    every: Collection[TopicPartition],
    running: Sequence[TaskInstance],
    others: Collection[TopicPartition],
) -> bool:
    """Whether what `others` are the input of is committed to their ends, and `running` has read to its own.

    What workers have committed is asked before all ends: what they sent before they were done is there
    by then, also to partitions that were found empty a moment earlier.
    """
    committed = broker.committed(app, others, require_stable=False)
    ends = broker.offsets(every)
    reached = [
        *((tp, committed[tp].offset if tp in committed else ends[tp].log_start) for tp in others),
        *((source.partition, source.ahead) for i in running for source in i.inputs),
    ]
    return all(offset >= ends[tp].high_watermark for tp, offset in reached)
