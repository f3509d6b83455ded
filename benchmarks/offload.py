"""Load a typed topic into Parquet files, against pyarrow writing the same table.

Both write all columns of the load (those of the topic, and the place of each record) with the same
compression and the same size of row groups. Ours reads four partitions of a log, writes a file for
each, syncs them and commits. pyarrow has the whole table in memory, writes one file, and syncs
nothing. The same load into a Delta Lake table is beside it.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import strandline as sl
from benchmarks.harness import Figure, Stopwatch, compare, folder
from strandline import changelog
from strandline.changelog.clock import SystemClock
from strandline.changelog.log import Log
from strandline.framework.offload.api import Format
from strandline.framework.offload.files import COMPRESSION
from strandline.framework.offload.tasks import GROUP_ROWS

PARTITIONS = 4
USERS = 100_000
BATCH_ROWS = 50_000
"""Number of rows of a batch in the log."""
SCHEMA = pa.schema([("user", pa.int64()), ("amount", pa.float64()), ("name", pa.string())])


def run(*, quick: bool = False) -> list[Figure]:
    """Measure rows a second (target of Parquet: 0.4 of pyarrow)."""
    count = 400_000 if quick else 8_000_000
    rounds = 3 if quick else 5
    with folder() as path, changelog.open(path / "log") as log:
        _fill(log, count)
        sl.offload("rows", path / "table", log=log)
        table = ds.dataset(path / "table", format="parquet", exclude_invalid_files=True).to_table()
        assert len(table) == count
        numbers = itertools.count()
        peer = partial(_by_pyarrow, table, path, numbers)
        return [
            compare(
                f"load of a typed topic as {form}, {count:,} rows",
                partial(_by_offload, log, path, count, form, numbers),
                peer,
                peer_name="pyarrow writing the same table",
                unit="rows/s",
                target=0.4 if form == "parquet" else None,
                rounds=rounds,
            )
            for form in ("parquet", "delta")
        ]


def _fill(log: Log, count: int) -> None:
    """Append rows with the present time to every partition."""
    log.create_topic("rows", PARTITIONS, schema=SCHEMA)
    random, now = np.random.default_rng(7), SystemClock().now_ms()
    for start in range(0, count, BATCH_ROWS):
        users = random.integers(0, USERS, BATCH_ROWS)
        names = np.char.add("name-", (users % 1_000).astype(str))
        rows = pa.table([users, random.random(BATCH_ROWS), names], schema=SCHEMA)
        partition = start // BATCH_ROWS % PARTITIONS
        log.append("rows", rows, partition=partition, timestamp=now + start // BATCH_ROWS)


def _by_offload(
    log: Log, path: Path, count: int, form: Format, numbers: itertools.count[int]
) -> float:
    watch = Stopwatch()
    report = sl.offload("rows", path / f"load-{next(numbers)}", log=log, format=form)
    rate = count / watch.seconds
    assert report.rows == count
    return rate


def _by_pyarrow(table: pa.Table, path: Path, numbers: itertools.count[int]) -> float:
    watch = Stopwatch()
    file = path / f"plain-{next(numbers)}.parquet"
    pq.write_table(table, file, compression=COMPRESSION, row_group_size=GROUP_ROWS)
    return len(table) / watch.seconds
