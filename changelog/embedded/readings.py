"""Metrics of the process that owns a log, as they are at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from strandline.changelog.embedded.metrics import (
    APPENDS,
    BYTES,
    END,
    FSYNCS,
    OPEN,
    RECORDS,
    REFUSING,
    ROUNDS,
    SIZE,
    STABLE,
    START,
    TRANSACTIONS,
    LogCounters,
)
from strandline.changelog.embedded.topic import OpenTopic
from strandline.changelog.metrics import MetricReading


def log_readings(
    topics: Iterable[OpenTopic], counters: LogCounters, open_transactions: int
) -> Iterator[MetricReading]:
    """Return the metrics of an owner, except those about attached processes."""
    for topic in topics:
        yield from _of_topic(topic)
    yield MetricReading(FSYNCS, (), counters.fsyncs.read())
    yield MetricReading(ROUNDS, (), counters.rounds.value)
    yield MetricReading(TRANSACTIONS, ("committed",), counters.committed.value)
    yield MetricReading(TRANSACTIONS, ("aborted",), counters.aborted.value)
    yield MetricReading(OPEN, (), open_transactions)


def _of_topic(topic: OpenTopic) -> Iterator[MetricReading]:
    name, partitions = topic.meta.name, list(topic.partitions)
    written = [partition.written for partition in partitions]
    yield MetricReading(APPENDS, (name,), sum(w.appends for w in written))
    yield MetricReading(RECORDS, (name,), sum(w.records for w in written))
    yield MetricReading(BYTES, (name,), sum(w.nbytes for w in written))
    yield MetricReading(SIZE, (name,), sum(s.size for p in partitions for s in p.segments))
    yield MetricReading(
        REFUSING, (name,), sum(not p.gate.usable and not p.gate.retired for p in partitions)
    )
    for number, partition in enumerate(partitions):
        ends = partition.offsets()
        yield MetricReading(START, (name, str(number)), ends.log_start)
        yield MetricReading(END, (name, str(number)), ends.high_watermark)
        yield MetricReading(STABLE, (name, str(number)), ends.last_stable_offset)
