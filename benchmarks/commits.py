"""Commit while the log is cleaned, against the same with the cleaner off.

This process owns the log, with the cleaner on its own thread, as in an app. It commits transactions
of 8 small records to 4 partitions, with fsync: one after the other, or 50 a second, each timed from
the moment it was due. Meanwhile a compacted topic is cleaned, of which 88 % is to be removed, by a
cleaner without a limit, or by one limited to 50 MB of I/O a second. The peer runs for as long next
to an equally dirty topic that is not cleaned (`log.cleaner.enable=false`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.harness import Figure, Stopwatch, folder, of_pairs
from benchmarks.keyed_records import KeyedRecords
from strandline import changelog
from strandline.changelog.client.producer import Producer
from strandline.changelog.log import Log

TOPIC, DIRTY = "commits", "dirty"
PARTITIONS = 4
RECORDS_PER_TRANSACTION = 8
"""Number of records of a transaction."""
TRANSACTIONS_PER_S = 50
"""Transactions a second, for the load with a fixed rate."""
BRAKE_BYTES_PER_S = 50_000_000
"""Bytes of I/O a second that the limited cleaner may do."""
LEVELS = (("median", 50), ("99th percentile", 99), ("99.9th percentile", 99.9))
WARM_UP_SECONDS = 0.3
_RECORDS_A_KEY = 8
_VALUE = b"x" * 100


@dataclass(frozen=True)
class CommitsPlan:
    """Sizes and durations of the runs."""

    dirty: int = 4_000_000
    """Number of records of the topic that is cleaned."""
    seconds: float = 6.0
    """Maximum seconds of a run. It ends earlier if nothing is left to clean."""
    rounds: int = 5


@dataclass(frozen=True)
class CommitsRun:
    """Commits of one run."""

    milliseconds: list[float]
    """Milliseconds of each commit."""
    seconds: float

    @property
    def rate(self) -> float:
        return len(self.milliseconds) / self.seconds

    def at(self, percentile: float) -> float:
        return float(np.percentile(self.milliseconds, percentile))


Load = Callable[[Producer, Callable[[], bool]], list[float]]
"""Function that commits at least once and until told to stop. Returns the milliseconds of each."""


def run(*, quick: bool = False) -> Iterator[Figure]:
    """Measure milliseconds of a commit, and commits per second (no targets)."""
    yield from figures(CommitsPlan(400_000, 1.0, 1) if quick else CommitsPlan())


def figures(plan: CommitsPlan) -> Iterator[Figure]:
    """Yield every figure of `plan` as it is measured."""
    for brake in (None, BRAKE_BYTES_PER_S):
        cleaner = "cleaning" if brake is None else f"cleaning at {brake // 10**6} MB/s"
        for load, pace in (
            (as_fast_as_it_can, "one after the other"),
            (steadily, f"{TRANSACTIONS_PER_S} a second"),
        ):
            pairs = [_pair(plan, load, brake) for _ in range(plan.rounds)]
            yield from _figures(f"commits, {pace}, while {cleaner}", pairs)


def _figures(name: str, pairs: list[tuple[CommitsRun, CommitsRun]]) -> Iterator[Figure]:
    figure = partial(of_pairs, peer_name="without")
    for level, percent in LEVELS:
        yield figure(
            f"{name}: {level}",
            [(busy.at(percent), idle.at(percent)) for busy, idle in pairs],
            unit="ms",
            at_most=True,
        )
    yield figure(name, [(busy.rate, idle.rate) for busy, idle in pairs], unit="commits/s")


def _pair(plan: CommitsPlan, load: Load, brake: int | None) -> tuple[CommitsRun, CommitsRun]:
    busy = _measured(plan, load, plan.seconds, cleaning=True, brake=brake)
    return busy, _measured(plan, load, busy.seconds, cleaning=False, brake=brake)


def _measured(
    plan: CommitsPlan, load: Load, seconds: float, *, cleaning: bool, brake: int | None
) -> CommitsRun:
    with folder() as path, changelog.open(path / "log", role="own") as log:
        _prepare(log, plan, cleaning, brake)
        with log.producer(transactional_id="commits") as producer:
            load(producer, _for(WARM_UP_SECONDS))
            if cleaning:
                log.broker.clean([DIRTY])
            going = _for(seconds)
            watch = Stopwatch()
            milliseconds = load(producer, lambda: going() and _is_cleaned(log) is not cleaning)
            seconds = watch.seconds
        assert (_is_cleaned(log) is None) is not cleaning
        return CommitsRun(milliseconds, seconds)


def _prepare(log: Log, plan: CommitsPlan, cleaning: bool, brake: int | None) -> None:
    settings = {"log.cleaner.enable": str(cleaning).lower()}
    if brake is not None:
        settings["log.cleaner.io.max.bytes.per.second"] = str(brake)
    log.alter_config(settings)
    log.create_topic(TOPIC, PARTITIONS)
    never = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0"}
    log.create_topic(DIRTY, 1, config=never)  # it is cleaned only on request
    with log.producer() as producer:
        for batch in KeyedRecords(plan.dirty, plan.dirty // _RECORDS_A_KEY).batches():
            producer.append_batch(DIRTY, 0, batch)


def _is_cleaned(log: Log) -> bool | None:
    """Return True once the cleaner is done; None if it was not requested."""
    (status,) = [one for one in log.broker.cleaning() if one.topic == DIRTY]
    assert not status.failures, status
    return status.state == "idle" if status.last is not None or status.state != "idle" else None


# Loads -------------------------------------------------------------------------------


def as_fast_as_it_can(producer: Producer, going: Callable[[], bool]) -> list[float]:
    """Commit, each time after the previous commit has returned."""
    milliseconds: list[float] = []
    while not milliseconds or going():
        watch = Stopwatch()
        _commit(producer)
        milliseconds.append(watch.seconds * 1000)
    return milliseconds


def steadily(producer: Producer, going: Callable[[], bool]) -> list[float]:
    """Commit at a fixed rate, timed from the due time: a late commit makes the next one late."""
    milliseconds: list[float] = []
    watch = Stopwatch()
    while not milliseconds or going():
        due = len(milliseconds) / TRANSACTIONS_PER_S
        time.sleep(max(0.0, due - watch.seconds))
        _commit(producer)
        milliseconds.append((watch.seconds - due) * 1000)
    return milliseconds


def _commit(producer: Producer) -> None:
    with producer.transaction():
        for number in range(RECORDS_PER_TRANSACTION):
            producer.send(TOPIC, key=b"%d" % number, value=_VALUE)


def _for(seconds: float) -> Callable[[], bool]:
    watch = Stopwatch()
    return lambda: watch.seconds < seconds
