"""Pins of a log that another process owns: kept by the owner, read from the files."""

from __future__ import annotations

import pytest

from strandline.changelog.errors import InvalidRequest, OffsetOutOfRange, UnknownPin
from strandline.changelog.flight.attach import attach_or_own
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.pins import PinName, PinnedRange
from strandline.changelog.records import Append, TopicPartition
from tests.cleaning import clean

T0 = TopicPartition("t", 0)
PIN = PinName("query", "a", "b")
HOUR = 3_600_000
SMALL = {
    "segment.bytes": "4096",
    "index.interval.bytes": "512",
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "1",  # cleaned only on request
}


@pytest.fixture
def span(owner, columns):
    """Range of all of topic t: 400 records of five keys, in several segments."""
    owner.create_topic("t", config=SMALL)
    producer = owner.init_producer()
    for n in range(80):
        owner.append([Append("t", 0, columns(5), producer, 5 * n)])
    assert len(owner._log.partition(T0).segments) > 2
    return {T0: PinnedRange(owner.topic("t").topic_id, 0, 400)}


def pinned(broker, name=PIN, max_bytes=1 << 20):
    """Return the offsets of a pinned range."""
    found = broker.pins.use(name)[T0]
    position, seen = found.start, []
    while position < found.end:
        fetched = broker.pins.fetch(name, T0, position, max_bytes=max_bytes)
        seen += [offset for batch in fetched.batches for offset in batch.offsets.to_pylist()]
        position = fetched.next_offset
    return seen


@pytest.fixture
def asked(beside, monkeypatch):
    """Fetches in which the owner was asked to send records."""
    seen = []
    fetch = beside._connection.fetch
    monkeypatch.setattr(
        beside._connection, "fetch", lambda request: seen.append(request) or fetch(request)
    )
    return seen


def test_an_attached_process_pins_reads_and_releases(attached, owner, span):
    assert attached.pins.hold(PIN, span, timeout_ms=HOUR) == span
    assert clean(owner, T0).tally.superseded > 100
    assert attached.pins.use(PIN) == span
    assert pinned(attached) == pinned(attached, max_bytes=1) == pinned(owner) == list(range(400))
    attached.pins.release("query", "b")
    for call in (attached.pins.use, lambda name: attached.pins.fetch(name, T0, 0, max_bytes=1)):
        with pytest.raises(UnknownPin, match="query/a-b"):
            call(PIN)


def test_an_attached_process_gets_the_owners_errors(attached, span):
    attached.pins.hold(PIN, span, timeout_ms=HOUR)
    with pytest.raises(OffsetOutOfRange, match="pinned from 0 to 400"):
        attached.pins.fetch(PIN, T0, 401, max_bytes=1)
    with pytest.raises(InvalidRequest, match="names match"):
        attached.pins.hold(PinName("../..", "a", "b"), span, timeout_ms=HOUR)


def test_pinned_records_are_read_from_the_files(beside, span, asked):
    beside.pins.hold(PIN, span, timeout_ms=HOUR)
    assert pinned(beside) == list(range(400))
    assert asked == []


def test_pinned_records_are_sent_if_the_files_cannot_be_read(beside, span, asked, tmp_path):
    beside.pins.hold(PIN, span, timeout_ms=HOUR)
    beside.pins._reader._storage = LocalStorage(tmp_path / "elsewhere")
    assert pinned(beside) == list(range(400))
    assert asked


def test_an_invalid_pin_name_cannot_read_files_outside_of_the_pins(beside, span, tmp_path):
    beside.pins.hold(PIN, span, timeout_ms=HOUR)
    name = PinName(str(tmp_path / "log/pins/query"), "a", "b")
    with pytest.raises(UnknownPin):
        beside.pins.fetch(name, T0, 0, max_bytes=1)


def test_a_pin_outlives_the_owner_that_made_it(start, tmp_path, columns):
    process = start("own")
    with_log = attach_or_own(tmp_path / "log", deadline=20)
    try:
        with_log.create_topic("t", config=SMALL)
        assert process.ask("append 200") == "0"
        span = {T0: PinnedRange(with_log.topic("t").topic_id, 0, 200)}
        with_log.pins.hold(PIN, span, timeout_ms=HOUR)
        process.kill()
        assert with_log.pins.use(PIN) == span
        assert with_log.owning
        with_log.alter_topic("t", {"cleanup.policy": "delete", "retention.ms": "-1"})
        with_log.delete_records(T0, -1)
        assert pinned(with_log) == list(range(200))
        with_log.pins.release("query", "b")
        with pytest.raises(UnknownPin):
            with_log.pins.use(PIN)
    finally:
        with_log.close()
