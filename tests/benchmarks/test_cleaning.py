"""The cleaner's benchmark compares the right work, and runs; without Kafka, and with little
data."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cleaning
from benchmarks.cleaning import CleaningPlan
from benchmarks.dirty_log import CHANGELOG, check_cleaned, fill
from benchmarks.kafka_cleaner import pass_over, rates
from benchmarks.keyed_records import BATCH_RECORDS, KeyedRecords
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.local_storage import LocalStorage

COUNT = 2 * BATCH_RECORDS + 7

SAID = """\
[kafka-log-cleaner-thread-0] INFO org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread
\tLog cleaner thread 0 cleaned log compacted4-0 (dirty section = [0, 16007])
\t1,465.4 MB of log processed in 4.0 seconds (116.3 MB/sec).
\tIndexed 465.4 MB in 1.8 seconds (258.7 Mb/sec, 45.0% of total time)
\tBuffer utilization: 8.9%
\tCleaned 465.4 MB in 2.2 seconds (211.3 Mb/sec, 55.0% of total time)
\tStart size: 465.4 MB (16,007 messages)
\tEnd size: 58.2 MB (100 messages)
\t87.5% size reduction (87.5% fewer messages)
"""
"""Log lines of Kafka 4.1.1, with the sizes of another log."""


@pytest.mark.parametrize("keys", [None, 1, 100, 50_000])
def test_the_survivors_are_the_last_records_of_their_keys(keys: int | None) -> None:
    records = KeyedRecords(COUNT, keys)
    rows = [row for batch in records.batches() for row in batch.to_pylist()]
    last = {row["key"]: offset for offset, row in enumerate(rows)}
    assert [int(row["value"][:12]) for row in rows] == list(range(COUNT))
    assert {len(row["key"]) for row in rows} == {12}
    assert {len(row["value"]) for row in rows} == {100}
    assert records.survivors.tolist() == sorted(last.values())
    if keys is None:
        assert len(last) == COUNT


def test_everything_but_the_last_record_is_in_closed_segments(tmp_path: Path) -> None:
    records = KeyedRecords(COUNT, 100, timestamp=1_700_000_000_000)
    size = fill(tmp_path, records)
    owner = Owner(LocalStorage(tmp_path), background=False)
    partition = owner._log.catalog.get(CHANGELOG.topic).partition(0)
    assert partition.segments[-1].base_offset == COUNT
    assert sum(segment.size for segment in partition.segments[:-1]) == size > 100 * COUNT
    owner.close()


def test_a_log_that_is_not_clean_is_detected(tmp_path: Path) -> None:
    records = KeyedRecords(COUNT, 100)
    fill(tmp_path, records)
    with pytest.raises(AssertionError, match=f"{COUNT + 1} records left, not 101"):
        check_cleaned(tmp_path, records)


def test_kafkas_figures_are_read_from_its_log() -> None:
    said = re.search(pass_over("compacted4"), SAID)
    assert said is not None
    records_per_second, mib_per_second = rates(said, KeyedRecords(COUNT, 100))
    assert mib_per_second == 116.3
    assert records_per_second == pytest.approx(COUNT * 116.3 / 1465.4)


def test_kafkas_figures_are_not_read_before_the_log_lines_of_the_topic_are_complete() -> None:
    assert re.search(pass_over("compacted4"), SAID[: SAID.index("End size")]) is None
    assert re.search(pass_over("compacted"), SAID) is None


def test_a_pass_of_kafka_over_other_records_is_refused() -> None:
    said = re.search(pass_over("compacted4"), SAID)
    assert said is not None
    with pytest.raises(AssertionError, match="cleaned log compacted4-0"):
        rates(said, KeyedRecords(COUNT, 101))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc, and pins processes to a core")
def test_the_benchmark_runs() -> None:
    found = list(
        cleaning.figures(CleaningPlan(records=3 * BATCH_RECORDS, largest=4, rounds=1, kafka=False))
    )
    assert {figure.unit for figure in found} == {"ns/record", "MiB", "s"}
    assert all(np.isfinite(figure.ratio) and figure.ours > 0 for figure in found)
