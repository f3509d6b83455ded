"""Choice of the records of a commit: before the first unfinished one, without what depends on it."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.changelog.records import TopicPartition
from strandline.framework.faust.ledger import Ledger, Unit
from strandline.framework.faust.overlay import MISSING, Overlay

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


@dataclass(eq=False)
class Message:
    """A delivered record."""

    tp: TopicPartition
    offset: int
    acked: bool = False
    tracked: bool = True


def deliver(ledger: Ledger, tp: TopicPartition, offset: int) -> tuple[Message, Unit]:
    """Deliver a record; return it and its unit."""
    message = Message(tp, offset)
    ledger.deliver(message)
    unit = ledger.unit_of(message)
    assert unit is not None
    return message, unit


def test_offsets_stop_before_the_first_record_in_flight() -> None:
    ledger = Ledger()
    messages = [deliver(ledger, A, offset)[0] for offset in (3, 5, 8)]
    messages[0].acked = messages[2].acked = True
    assert ledger.plan().offsets == {A: 4}
    messages[1].acked = True
    plan = ledger.plan()
    assert plan.offsets == {A: 9}
    ledger.settle(plan)
    assert not ledger.plan()


def test_effects_of_a_record_in_flight_wait() -> None:
    ledger, overlay = Ledger(), Overlay()
    first, one = deliver(ledger, A, 0)
    second, two = deliver(ledger, A, 1)
    overlay.write(b"k", b"1", one)
    ledger.send(one, "out", 0, None, b"1", 0, ())
    overlay.write(b"k", b"2", two)
    first.acked = True
    plan = ledger.plan()
    assert plan.changes == {overlay: {b"k": b"1"}}
    assert [sent.value for sent in plan.sent] == [b"1"]
    ledger.settle(plan)
    assert overlay.read(b"k", None) == b"2"
    second.acked = True
    ledger.settle(ledger.plan())
    assert overlay.read(b"k", None) is MISSING


def test_a_record_waits_for_the_one_whose_uncommitted_value_it_has_seen() -> None:
    ledger, overlay = Ledger(), Overlay()
    first, one = deliver(ledger, A, 0)
    other, two = deliver(ledger, B, 0)
    later, _ = deliver(ledger, B, 1)
    overlay.write(b"k", b"1", one)
    assert overlay.read(b"k", two) == b"1"
    other.acked = later.acked = True
    assert not ledger.plan()  # neither it, nor the record after it
    first.acked = True
    assert ledger.plan().offsets == {A: 1, B: 2}


def test_a_batch_is_committed_as_a_whole() -> None:
    ledger = Ledger()
    members = [deliver(ledger, A, 0)[0], deliver(ledger, B, 0)[0]]
    unit = ledger.batch(lambda tp: tp in (A, B))
    ledger.send(unit, "out", 0, None, b"sum", 0, ())
    members[0].acked = True
    assert not ledger.plan()
    members[1].acked = True
    plan = ledger.plan()
    assert plan.offsets == {A: 1, B: 1}
    assert len(plan.sent) == 1


def test_an_interrupted_record_is_not_done_although_it_is_acknowledged() -> None:
    ledger = Ledger()
    message, unit = deliver(ledger, A, 0)
    unit.interrupted = message.acked = True
    assert not ledger.plan()


def test_undo_drops_the_effects_of_one_record_unless_others_have_seen_them() -> None:
    ledger, overlay = Ledger(), Overlay()
    _, one = deliver(ledger, A, 0)
    _, two = deliver(ledger, B, 0)
    overlay.write(b"k", b"1", one)
    ledger.send(one, "out", 0, None, b"1", 0, ())
    assert ledger.undo(one)
    assert overlay.read(b"k", None) is MISSING
    overlay.write(b"k", b"1", one)
    assert overlay.read(b"k", two) == b"1"
    assert not ledger.undo(one)


def test_dropped_work_leaves_nothing_and_takes_nothing() -> None:
    ledger, overlay = Ledger(), Overlay()
    message, unit = deliver(ledger, A, 0)
    overlay.write(b"k", b"1", unit)
    assert ledger.discard() == 1
    assert overlay.read(b"k", None) is MISSING
    assert ledger.unit_of(message) is None
    ledger.send(unit, "out", 0, None, b"1", 0, ())
    assert not ledger.plan()


def test_a_batch_waits_for_no_record_that_no_agent_has_begun() -> None:
    """A backlog never becomes empty, so batches that waited for it would never be committed."""
    ledger = Ledger()
    first, _ = deliver(ledger, A, 0)
    waiting, _ = deliver(ledger, A, 1)
    waiting.tracked = False
    unit = ledger.batch(lambda tp: tp == A)
    ledger.send(unit, "out", 0, None, b"sum", 0, ())
    first.acked = True
    plan = ledger.plan()
    assert plan.offsets == {A: 1}
    assert [sent.value for sent in plan.sent] == [b"sum"]


def test_a_batch_with_dropped_records_is_read_again() -> None:
    ledger = Ledger()
    old, _ = deliver(ledger, A, 0)
    ledger.discard()
    new, unit = deliver(ledger, A, 0)
    ledger.send(ledger.batch(lambda tp: tp == A), "out", 0, None, b"old and new", 0, ())
    old.acked = new.acked = True
    assert ledger.must_rewind
    assert unit.interrupted
    assert not ledger.plan()
    ledger.discard()
    deliver(ledger, A, 0)[0].acked = True
    assert ledger.plan().offsets == {A: 1}


def test_a_record_that_comes_twice_is_committed_once_and_all_are_read_again() -> None:
    """Its first time may have been committed already."""
    ledger = Ledger()
    messages = [deliver(ledger, A, offset)[0] for offset in (3, 4)]
    other, _ = deliver(ledger, B, 3)
    messages[0].acked = messages[1].acked = other.acked = True
    ledger.settle(ledger.plan())
    assert not ledger.must_rewind
    again = [deliver(ledger, A, offset)[0] for offset in (4, 5)]
    again[0].acked = again[1].acked = True
    assert ledger.must_rewind
    assert not ledger.plan()
    ledger.discard()
    assert not ledger.must_rewind
    last, _ = deliver(ledger, A, 4)
    last.acked = True
    assert ledger.plan().offsets == {A: 5}


def test_a_record_that_the_app_has_sought_may_come_again() -> None:
    ledger = Ledger()
    for _ in range(2):
        message, _ = deliver(ledger, A, 7)
        message.acked = True
        assert ledger.plan().offsets == {A: 8}
        ledger.settle(ledger.plan())
        ledger.sought(A)
    assert not ledger.must_rewind
