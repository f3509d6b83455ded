"""Metrics of the owner of a log (docs/guide/operating.md, Metrics)."""

from __future__ import annotations

from strandline.changelog.embedded.format import FrameHeader
from strandline.changelog.metrics import Histogram, Metric, MonotonicCounter

APPENDS = Metric(
    "strandline_log_appends_total", "counter", "Batches appended by producers.", ("topic",)
)
RECORDS = Metric(
    "strandline_log_appended_records_total", "counter", "Records in these batches.", ("topic",)
)
BYTES = Metric(
    "strandline_log_appended_bytes_total", "counter", "Bytes of these batches on disk.", ("topic",)
)
FSYNCS = Metric("strandline_log_fsync_seconds", "histogram", "How long fsyncs of segments took.")
ROUNDS = Metric("strandline_log_commit_rounds_total", "counter", "Rounds of group commit.")
TRANSACTIONS = Metric(
    "strandline_log_transactions_total", "counter", "Transactions that have ended.", ("outcome",)
)
OPEN = Metric("strandline_log_open_transactions", "gauge", "Transactions that have not ended.")
SIZE = Metric("strandline_log_size_bytes", "gauge", "Bytes of a topic's segments.", ("topic",))
START = Metric(
    "strandline_log_start_offset",
    "gauge",
    "Offset of the first record that is kept.",
    ("topic", "partition"),
)
END = Metric(
    "strandline_log_end_offset",
    "gauge",
    "End (exclusive) of the durable records.",
    ("topic", "partition"),
)
STABLE = Metric(
    "strandline_log_stable_offset",
    "gauge",
    "Offset below which no transaction is open.",
    ("topic", "partition"),
)
REFUSING = Metric(
    "strandline_log_refusing_partitions",
    "gauge",
    "Partitions that reject appends until the log is opened again.",
    ("topic",),
)
METRICS = (
    *(APPENDS, RECORDS, BYTES, FSYNCS, ROUNDS, TRANSACTIONS),
    *(OPEN, SIZE, START, END, STABLE, REFUSING),
)


class LogCounters:
    """Counters of an open log as a whole."""

    def __init__(self) -> None:
        self.fsyncs = Histogram()
        self.rounds = MonotonicCounter()
        self.committed = MonotonicCounter()
        self.aborted = MonotonicCounter()

    def ended(self, *, committed: bool) -> None:
        """Count a transaction that has ended."""
        (self.committed if committed else self.aborted).add()


class AppendCounters:
    """Counters of the batches that producers have appended to one partition.

    They change under the partition's lock.
    """

    def __init__(self) -> None:
        self.appends = 0
        self.records = 0
        self.nbytes = 0

    def add(self, header: FrameHeader) -> None:
        """Count a batch."""
        self.appends += 1
        self.records += header.record_count
        self.nbytes += header.length
