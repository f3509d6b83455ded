"""The cleaner against Apache Kafka's own: `make bench-clean`, or `python -m benchmarks.cleaning`.

Both clean the same log: 4,000,000 records with values of 100 bytes over 500,000 keys, so 88 % of it
is removed. Batches have 8,000 records and are not compressed, segments have 256 MiB. Everything is on
the disk and in the page cache before the clock starts. Both clean on the same one core, in turn, with
a dedupe buffer of 128 MiB, Kafka's default.

- *Against Kafka*: records and MiB (1,048,576 bytes of segment files; a record takes 122 bytes
  there and 128 here) of the cleaned log, divided by the seconds of the whole pass, fsync and swap
  included. The same with a different key in every record, where nothing is removed: Kafka has room
  for them, ours spills a sixth of them to a file.
- *By processor time*: records divided by the seconds that the cleaning was on the processor (of
  Kafka its cleaner's thread, without the garbage collector's), which other processes affect less.
- *Size*: nanoseconds a record at 4 and 16 times the size (and as many more keys), against the single
  size, with room for all keys in the dedupe buffer; and with a different key in every record in
  Kafka's default buffer of 128 MiB, where keys are spilled to a file. The same without the time of
  system calls. *Memory*: growth of the process, against the buffer.
- *Small buffer*: 4 times the size, a different key in every record, in 128 MiB, against a buffer
  with room for all.
- *Restore*: seconds to restore a lost store from the cleaned log, against the dirty one.

Needs Linux with util-linux (taskset, setpriv); for Kafka also Java 17, Maven, and confluent-kafka
(`pip install confluent-kafka`; the make target does). It takes 20 GB of disk, or 5 GB with
`--largest 4`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import cleaning_process
from benchmarks.cleaning_process import CleaningUsage
from benchmarks.dirty_log import MEMORY, ROCKSDB, check_cleaned, fill, restore_seconds
from benchmarks.harness import Figure, compare, folder, of_pairs, report
from benchmarks.kafka_cleaner import DEDUPE_BUFFER_BYTES, KafkaCleaner, kafka_cleaner
from benchmarks.keyed_records import KeyedRecords
from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.cleaning.offset_map import OVERHEAD_BYTES

FASTER_THAN_KAFKA = 4.0
SLOWER_WHEN_LARGE = 1.25
"""Maximum ratio of the time per record in the larger log to that in the smaller one."""

_RECORDS_A_KEY = 8
_SIZES = (4, 16)
_SMALL_BUFFER_SIZE = 4
_ROOM_PER_KEY, _KAFKAS_ROOM_PER_KEY = 40, 27
"""Bytes of the dedupe buffer per key. Ours needs 26.7, and sorts more often with that."""
_DISK_BYTES_PER_RECORD = 300
"""Bytes of disk per record: the log, and a copy of all of it, or the file of keys."""
TICK_S = 0.001
"""Resolution of a process's own time. A short one may have measured nothing."""
_MIB = 1 << 20


@dataclass(frozen=True)
class CleaningPlan:
    """Sizes and rounds of the measurement."""

    records: int = 4_000_000
    largest: int = 16
    """Largest log, in multiples of `records`."""
    rounds: int = 3
    kafka: bool = True
    core: int = field(default_factory=lambda: max(os.sched_getaffinity(0)))
    """Processor core on which both clean."""

    @staticmethod
    def quick() -> CleaningPlan:
        """Return a small plan."""
        return CleaningPlan(records=80_000, largest=4, rounds=1)


class CleaningRun(NamedTuple):
    """One cleaning of a log."""

    records: KeyedRecords
    size: int
    """Bytes of the cleaned part of the log."""
    buffer: int
    """Bytes of the dedupe buffer."""
    took: CleaningUsage

    @property
    def records_per_second(self) -> float:
        return self.records.count / self.took.seconds

    @property
    def mib_per_second(self) -> float:
        return self.size / _MIB / self.took.seconds

    @property
    def records_per_processor_second(self) -> float:
        return self.records.count / self.took.processor_seconds

    @property
    def nanoseconds(self) -> float:
        """Nanoseconds per record."""
        return 1e9 * self.took.seconds / self.records.count

    @property
    def user_nanoseconds(self) -> float:
        """Nanoseconds per record in the process's own code."""
        return 1e9 * max(self.took.user_seconds, TICK_S) / self.records.count


def main() -> int:
    """Run the comparison. Return 1 if a target was missed."""
    plan = CleaningPlan()
    parser = argparse.ArgumentParser(
        prog="benchmarks.cleaning", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--records", type=int, default=plan.records, help="of the log, once")
    parser.add_argument("--largest", type=int, default=plan.largest, help="times that, at most")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help="pairs of a figure")
    parser.add_argument("--core", type=int, default=plan.core, help="on which both clean")
    parser.add_argument("--without-kafka", action="store_true", help="ours alone")
    parser.add_argument("--quick", action="store_true", help="does it run? small, nothing to quote")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    given = parser.parse_args()
    plan = (
        CleaningPlan.quick()
        if given.quick
        else CleaningPlan(given.records, given.largest, given.rounds)
    )
    plan = replace(plan, kafka=not given.without_kafka, core=given.core)
    return report(figures(plan), given.json)


def figures(plan: CleaningPlan) -> Iterator[Figure]:
    """Yield every figure of `plan` as it is measured."""
    dirty = KeyedRecords(
        plan.records, plan.records // _RECORDS_A_KEY, timestamp=SystemClock().now_ms()
    )
    unique = replace(dirty, keys=None)
    _check_room(plan)
    if plan.kafka:
        buffer = max(DEDUPE_BUFFER_BYTES, unique.count * _KAFKAS_ROOM_PER_KEY)
        with folder() as place, kafka_cleaner(place / "kafka", plan.core, buffer) as kafka:
            for records, target in ((dirty, FASTER_THAN_KAFKA), (unique, None)):
                yield from _against_kafka(records, kafka, plan, buffer, target)
    for records in (dirty, unique):
        yield from _by_size(records, plan, _room)
    yield from _by_size(
        unique, plan, lambda _: DEDUPE_BUFFER_BYTES, f", in {DEDUPE_BUFFER_BYTES // _MIB} MiB"
    )
    yield _small_buffer(unique, plan)
    yield from _restores(dirty, plan)


def _check_room(plan: CleaningPlan) -> None:
    needed = plan.records * max(plan.largest, 2) * _DISK_BYTES_PER_RECORD
    with folder() as place:
        free = shutil.disk_usage(place).free
    if free < needed:
        raise SystemExit(
            f"{place.parent} has {free / 1e9:.0f} GB free and {needed / 1e9:.0f} GB are needed: "
            "make room, or give --largest or --records"
        )


# Against Kafka -----------------------------------------------------------------------


def _against_kafka(
    records: KeyedRecords,
    kafka: KafkaCleaner,
    plan: CleaningPlan,
    buffer: int,
    target: float | None,
) -> Iterator[Figure]:
    kafka.clean(records)  # lets the JVM compile it
    runs = [(_run(records, plan.core, buffer), kafka.clean(records)) for _ in range(plan.rounds)]
    name = f"clean {_named(records)}"
    figure = partial(of_pairs, peer_name="Kafka's cleaner")
    yield figure(
        name,
        [(o.records_per_second, k.records_per_second) for o, k in runs],
        unit="records/s",
        target=target,
    )
    yield figure(name, [(o.mib_per_second, k.mib_per_second) for o, k in runs], unit="MiB/s")
    yield figure(
        f"{name}, by processor time",
        [(o.records_per_processor_second, k.records_per_processor_second) for o, k in runs],
        unit="records/s",
    )


# Size and memory ---------------------------------------------------------------------


def _by_size(
    once: KeyedRecords, plan: CleaningPlan, buffer: Callable[[KeyedRecords], int], where: str = ""
) -> Iterator[Figure]:
    runs: dict[int, list[CleaningRun]] = defaultdict(list)
    figure = partial(of_pairs, peer_name="once", unit="ns/record", at_most=True)
    for size in (size for size in _SIZES if size <= plan.largest):
        both = (_times(once, size), once)
        pairs = [
            tuple(_run(records, plan.core, buffer(records)) for records in both)
            for _ in range(plan.rounds)
        ]
        name = f"clean {size} × {_named(once)}{where}"
        taken = [(larger.nanoseconds, smaller.nanoseconds) for larger, smaller in pairs]
        yield figure(name, taken, target=SLOWER_WHEN_LARGE)
        taken = [(larger.user_nanoseconds, smaller.user_nanoseconds) for larger, smaller in pairs]
        yield figure(f"{name}, without the system's calls", taken)
        runs[size] += [larger for larger, _ in pairs]
        runs[1] += [smaller for _, smaller in pairs]
    for size, some in sorted(runs.items()):
        yield from _memory(f"clean {size} × {_named(once)}{where}", some)


def _memory(name: str, runs: list[CleaningRun]) -> Iterator[Figure]:
    figure = partial(of_pairs, peer_name="the dedupe buffer", unit="MiB", at_most=True)
    resident = [(run.took.resident / _MIB, run.buffer / _MIB) for run in runs]
    arrow = [(run.took.arrow / _MIB, run.buffer / _MIB) for run in runs]
    yield figure(f"{name}: memory, highest", resident, target=1.0)
    yield figure(f"{name}: Arrow's pool, highest", arrow)


def _small_buffer(unique: KeyedRecords, plan: CleaningPlan) -> Figure:
    records = _times(unique, min(_SMALL_BUFFER_SIZE, plan.largest))
    return compare(
        f"clean {_named(records)}, in {DEDUPE_BUFFER_BYTES // _MIB} MiB",
        lambda: _run(records, plan.core, DEDUPE_BUFFER_BYTES).nanoseconds,
        lambda: _run(records, plan.core, _room(records)).nanoseconds,
        peer_name=f"in {_room(records) // _MIB:,} MiB",
        unit="ns/record",
        at_most=True,
        rounds=plan.rounds,
        warm_up=False,
    )


def _times(once: KeyedRecords, size: int) -> KeyedRecords:
    keys = None if once.keys is None else once.keys * size
    return replace(once, count=once.count * size, keys=keys)


def _room(records: KeyedRecords) -> int:
    """Return a dedupe buffer with room for all keys, Kafka's default at least."""
    return max(
        DEDUPE_BUFFER_BYTES, OVERHEAD_BYTES + (records.keys or records.count) * _ROOM_PER_KEY
    )


# A log of ours -----------------------------------------------------------------------


def _run(records: KeyedRecords, core: int, buffer: int) -> CleaningRun:
    with folder() as place:
        return _cleaned(place / "log", records, core, buffer)


def _cleaned(path: Path, records: KeyedRecords, core: int, buffer: int) -> CleaningRun:
    """Fill a log at `path`, clean it, and check that it is clean."""
    size = fill(path, records)
    os.sync()
    run = CleaningRun(records, size, buffer, cleaning_process.clean(path, core, buffer))
    check_cleaned(path, records)
    return run


def _named(records: KeyedRecords) -> str:
    gone = 1 - len(records.survivors) / records.count
    what = f"{gone:.0%} to remove" if records.keys else "all keys different"
    return f"{records.count:,} records, {what}"


# Restore -----------------------------------------------------------------------------


def _restores(records: KeyedRecords, plan: CleaningPlan) -> Iterator[Figure]:
    with folder() as place:
        fill(place / "dirty", records)
        _cleaned(place / "clean", records, plan.core, _room(records))
        for spec in (ROCKSDB, MEMORY):
            yield compare(
                f"restore after cleaning, {spec.engine}, {len(records.survivors):,} keys",
                partial(restore_seconds, place / "clean", spec, len(records.survivors) + 1),
                partial(restore_seconds, place / "dirty", spec, records.count + 1),
                peer_name=f"before, {records.count:,} records",
                unit="s",
                at_most=True,
                rounds=plan.rounds,
            )


if __name__ == "__main__":
    sys.exit(main())
