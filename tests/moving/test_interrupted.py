"""A move that dies at any call to the target can be run again: each record is there once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from strandline.changelog import scan
from strandline.changelog.clock import SystemClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.log import Log
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.moving import MovedLog, Selection, move, reading, verify_only
from strandline.changelog.moving.journal import unfinished
from strandline.changelog.records import CommittedOffset, TopicPartition

CHANGING = {
    *("create_topic", "alter_topic", "append", "init_producer", "add_offsets", "end_transaction"),
}
"""Calls that change the target."""
GROUP = "readers"


class Killed(BaseException):
    """Death of the process: nothing after it is done."""


class Mortal:
    """A broker whose client dies at one of its calls, before the call or after it."""

    def __init__(self, broker: Owner, at: int, *, after: bool) -> None:
        self._broker = broker
        self._at = at
        self._after = after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._broker, name)
        if name not in CHANGING:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls > self._at or (self.calls == self._at and not self._after):
                raise Killed
            answer = found(*args, **options)
            if self.calls == self._at:
                raise Killed
            return answer

        return call


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    """Logs in memory, closed after the test."""
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.close()


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy one batch of each of two partitions at a time."""
    monkeypatch.setattr(reading, "ROUND_BYTES", 1)
    monkeypatch.setattr(scan, "MIN_PARTITION_BYTES", 1)
    monkeypatch.setattr(scan, "MAX_PARTITIONS", 2)


def opened(owners: list[Owner]) -> Owner:
    owners.append(Owner(MemoryStorage(), background=False))
    return owners[-1]


def filled(owner: Owner) -> Log:
    """Return three partitions with gaps, in two topics, one of them compacted, and a group in the
    middle."""
    log = Log(owner)
    log.create_topic("in", 2)
    log.create_topic("state", 1, config={"cleanup.policy": "compact"})
    with log.producer(transactional_id="p") as producer:
        for n in range(3):
            with producer.transaction():
                for partition in range(2):
                    producer.send("in", b"%d" % n, partition=partition, timestamp=n)
                producer.send("state", b"%d" % n, b"k")
            producer.begin_transaction()
            producer.send("in", b"never", partition=0)
            producer.flush()
            producer.abort_transaction()
    owner.commit_offsets(GROUP, {TopicPartition("in", 0): CommittedOffset(4)})
    return log


def content(log: Log, topic: str) -> pa.Table:
    return log.read(topic).drop_columns(["offset"])


def left(log: Log) -> list[bytes]:
    """Return the values that the group has still to read."""
    [(tp, offset)] = log.broker.committed(GROUP).items()
    values: list[bytes] = log.read(tp.topic, start={0: offset.offset, 1: 1 << 40})[
        "value"
    ].to_pylist()
    return values


def calls_of_a_move() -> int:
    """Return the number of calls to the target in an uninterrupted move."""
    source, target = (Owner(MemoryStorage(), background=False) for _ in range(2))
    filled(source)
    counting = Mortal(target, 1 << 30, after=False)
    move(MovedLog("a", source), MovedLog("b", counting))
    source.close()
    target.close()
    return counting.calls


@pytest.mark.parametrize(
    ("after", "again"),
    [
        pytest.param(False, None, marks=pytest.mark.long),
        (True, None),
        (False, 4),
    ],
    ids=["before it", "behind it", "and again when it goes on"],
)
def test_a_move_that_dies_at_any_call_and_is_run_again_copies_each_record_once(
    owners: list[Owner], after: bool, again: int | None
) -> None:
    calls = calls_of_a_move()
    assert calls > 30
    source = opened(owners)
    log = filled(source)
    for at in range(1, calls + 1):
        target = opened(owners)
        with suppress(Killed):
            move(MovedLog("a", source), MovedLog("b", Mortal(target, at, after=after)))
        if again is not None:
            with suppress(Killed):
                move(MovedLog("a", source), MovedLog("b", Mortal(target, again, after=after)))
        place = MovedLog("b", target)
        report = move(MovedLog("a", source), place)
        there = Log(target)
        assert sum(topic.records for topic in report.topics) == 9
        for topic in ("in", "state"):
            assert content(there, topic) == content(log, topic), f"died at call {at} of {calls}"
        assert left(there) == left(log)
        assert there.topic("state").effective.compact
        verify_only(MovedLog("a", source), place, Selection())
        owners.remove(target)
        target.close()


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_a_copy_is_unfinished_until_offsets_are_committed_whenever_the_move_dies(
    owners: list[Owner], after: bool
) -> None:
    source = opened(owners)
    filled(source)
    before_offsets = 0
    for at in range(1, calls_of_a_move() + 1):
        target = opened(owners)
        with suppress(Killed):
            move(MovedLog("a", source), MovedLog("b", Mortal(target, at, after=after)))
        copies = {info.name for info in target.topics() if not info.internal}
        if GROUP not in target.groups():
            before_offsets += bool(copies)
            assert copies <= unfinished(target, SystemClock()).keys(), f"died at call {at}"
        else:
            assert unfinished(target, SystemClock()) == {}
        move(MovedLog("a", source), MovedLog("b", target))
        assert unfinished(target, SystemClock()) == {}
        owners.remove(target)
        target.close()
    assert before_offsets > 20
