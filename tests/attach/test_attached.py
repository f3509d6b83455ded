"""An attached process has the same interface as the owner's own."""

from __future__ import annotations

import os
import random
import threading
import time

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from strandline.changelog import errors
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidRequest,
    InvalidTxnState,
    OwnerUnavailable,
    RecordTooLarge,
    StrandlineError,
    TopicExists,
    Unauthenticated,
    UnknownTopic,
)
from strandline.changelog.flight import batches, messages, requests
from strandline.changelog.flight.client import FlightBroker
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.failover import FailoverBroker, LogLink
from strandline.changelog.flight.messages import (
    WIRE_VERSION,
    SessionHello,
    check_version,
    encode,
)
from strandline.changelog.flight.server import FlightEndpoint, _answer, _failures_sent
from strandline.changelog.log import Log
from strandline.changelog.records import (
    Append,
    Batch,
    CommittedOffset,
    Fetched,
    ProducerIdentity,
    TopicPartition,
)
from strandline.statestore import StoreSpec, open_store, replay
from tests.cleaning import Segments, ignore
from tests.state.kit import Meanwhile

T0 = TopicPartition("t", 0)


def a_row(message):
    return pa.record_batch(
        [pa.array([bytes(message)], pa.large_binary()), pa.nulls(1, pa.large_binary())],
        schema=batches.ROW_SCHEMA,
    )


def every_error():
    found, left = [], [StrandlineError]
    while left:
        kind = left.pop()
        if kind.__module__ == errors.__name__:
            found.append(kind)
            left += kind.__subclasses__()
    return found


def test_settings_need_no_keyword(owner: Owner, attached: FlightBroker) -> None:
    """`log.alter_topic("t", {"retention.ms": "5"})` works the same with every kind of log."""
    owner.create_topic("t")
    over = FailoverBroker(
        lambda _: LogLink(attached, lambda: False, lambda: None), deadline=10, name="t"
    )
    for days, broker in enumerate((owner, attached, over, Log(attached)), start=1):
        settings = {"retention.ms": str(days)}
        assert broker.alter_topic("t", settings).config == settings


def test_topics_can_be_created_altered_and_deleted_attached(attached, owner):
    schema = pa.schema([pa.field("delay", pa.int64())])
    created = attached.create_topic("t", 3, config={"retention.ms": "1000"}, schema=schema)
    assert created == owner.topic("t") == attached.topic("t")
    assert created.schema == schema
    assert attached.topics() == owner.topics()
    attached.alter_topic("t", config={"retention.ms": None}, partitions=4)
    assert (owner.topic("t").partitions, owner.topic("t").config) == (4, {})
    attached.delete_topic("t")
    with pytest.raises(UnknownTopic, match="t"):
        attached.topic("t")


def test_settings_of_the_log_can_be_changed_attached(attached, owner):
    attached.create_topic("t")
    given = attached.alter_config({"log.retention.hours": "2", "log.cleaner.threads": "3"})
    assert given == owner.describe_config() == attached.describe_config()
    assert given == {"log.retention.ms": "7200000", "log.cleaner.threads": "3"}
    assert attached.topic("t") == owner.topic("t")
    assert attached.topic("t").effective.retention_ms == 7_200_000
    with pytest.raises(InvalidConfig, match=r"did you mean 'log\.retention\.ms'"):
        attached.alter_config({"retention.ms": "1", "log.roll.ms": "5"})
    assert attached.alter_config({"log.retention.ms": None}) == {"log.cleaner.threads": "3"}


def test_records_appended_attached_are_fetched_by_the_owner_and_the_other_way_round(
    attached, owner, columns
):
    owner.create_topic("t")
    producer = attached.init_producer()
    appended = attached.append([Append("t", 0, columns(3), producer, 0)])
    appended += owner.append([Append("t", 0, columns(2, 3), producer, 3)])
    assert [one[:4] for one in appended] == [(0, 2, False, 0), (3, 4, False, 0)]
    assert {one.incarnation for one in appended} == {
        epoch.incarnation for epoch in attached.offsets([T0])[T0].epochs
    }
    fetched = attached.fetch({T0: 0})[T0]
    assert fetched == owner.fetch({T0: 0})[T0]
    values = [record.value for batch in fetched.batches for record in batch.records()]
    assert values == [b"0", b"1", b"2", b"3", b"4"]
    assert attached.offsets([T0]) == owner.offsets([T0])
    middle = fetched.batches[0].columns["timestamp"][1].as_py()
    assert attached.offset_for_time(T0, middle) == owner.offset_for_time(T0, middle) == 1
    assert attached.offset_for_time(T0, 10**15) is None
    assert attached.delete_records(T0, 2) == owner.offsets([T0])[T0].log_start


def test_the_clean_end_of_a_partition_is_reported(attached, owner):
    changelog = Segments(owner)
    changelog.change("a", 1)
    changelog.delete_and_purge("a")
    told = attached.offsets([changelog.partition])[changelog.partition]
    assert told == changelog.log
    assert (told.purged_end, told.clean_end, told.superseding_end) == (3, 6, 6)


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_deleted_key_does_not_reappear_in_a_store_that_is_restored_attached(
    attached, owner, monkeypatch, looked_at
):
    """The files that the restore reads are replaced and removed meanwhile."""
    monkeypatch.setattr(replay, "FETCH_BYTES", 1)
    changelog = Segments(owner)
    for key in ("zombie", "a", "b", "c"):
        changelog.change(key, 1)
    if not looked_at:
        ignore(monkeypatch, "purged_end")
    store = open_store(StoreSpec("s", key=str, value=int, engine="memory"))
    purge = Meanwhile(attached, "fetch", 3, lambda: changelog.delete_and_purge("zombie"))
    store.restore(purge, changelog.partition)
    wanted = changelog.model if looked_at else changelog.model | {"zombie": 1}
    assert dict(store.all()) == wanted


def test_one_call_appends_to_topics_of_different_schemas_in_order(attached, owner, columns):
    owner.create_topic("t")
    typed = owner.create_topic("typed", schema=pa.schema([pa.field("n", pa.int64())]))
    value = pa.array([{"n": 1}, None], pa.struct([pa.field("n", pa.int64())]))
    row = pa.record_batch(
        {
            "timestamp": pa.array([time.time_ns() // 1_000_000] * 2, pa.int64()),
            "key": pa.array([b"a", b"b"], pa.binary()),
            "value": value,
        }
    )
    producer = attached.init_producer()
    attached.append(
        [
            Append("t", 0, columns(2), producer, 0),
            Append("typed", 0, row, producer, 0, schema_id=typed.schema_id),
            Append("t", 0, columns(2, 2), producer, 2),
        ]
    )
    both = {T0: 0, TopicPartition("typed", 0): 0}
    fetched = attached.fetch(both)
    assert fetched == owner.fetch(both)
    assert fetched[TopicPartition("typed", 0)].batches[0].columns["value"].to_pylist() == [
        {"n": 1},
        None,
    ]


def test_gaps_between_offsets_are_transferred_after_compaction(columns):
    sparse = Batch("t", 0, 3, columns(3), 2, pa.array([3, 7, 8], pa.int64()))
    sent = {T0: Fetched([sparse], 9, 0, 9, 9)}
    received = batches.read_fetched(batches.fetched_rows(sent))
    assert received[T0].batches[0].offsets.to_pylist() == [3, 7, 8]
    assert received[T0].batches[0].leader_epoch == 2
    assert received[T0].batches[0].columns.equals(sparse.columns)


def test_a_slice_is_sent_without_the_rest_of_its_batch(columns):
    part = columns(10_000).slice(5_000, 2)
    (_, row) = batches.append_rows([Append("t", 0, part, None, 0)])
    assert row.data.nbytes < 2_000


def test_a_transaction_becomes_visible_when_it_commits(attached, owner, columns):
    owner.create_topic("t")
    producer = attached.init_producer("me")
    attached.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    attached.add_offsets(producer, "g", {T0: CommittedOffset(1, "note")})
    assert attached.fetch({T0: 0})[T0].batches == []
    following = attached.end_transaction(producer, commit=True)
    assert following.epoch > producer.epoch
    assert attached.end_transaction(producer, commit=True) == following
    assert len(attached.fetch({T0: 0})[T0].batches[0]) == 2
    assert attached.committed("g")[T0].offset == 1
    attached.commit_offsets("g", {T0: CommittedOffset(2)})
    assert attached.committed("g", [T0]) == owner.committed("g", [T0])
    assert attached.groups() == ["g"]
    attached.commit_offsets("g", {T0: None})
    assert attached.committed("g") == {}


def test_a_fetch_waits_on_the_owners_side_until_there_is_something(attached, owner, columns):
    owner.create_topic("t")
    waiting = threading.Event()

    def append():
        waiting.wait(5)
        owner.append([Append("t", 0, columns(1), owner.init_producer(), 0)])

    thread = threading.Thread(target=append)
    thread.start()
    waiting.set()
    start = time.monotonic()
    fetched = attached.fetch({T0: 0}, timeout=20)
    assert len(fetched[T0].batches) == 1
    assert time.monotonic() - start < 10
    thread.join()


def test_a_fetch_without_new_records_returns_every_partition_after_its_timeout(attached, owner):
    owner.create_topic("t", 2)
    positions = {T0: 0, TopicPartition("t", 1): 0}
    start = time.monotonic()
    fetched = attached.fetch(positions, timeout=0.3)
    assert 0.25 < time.monotonic() - start < 5
    assert fetched.keys() == positions.keys()


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_errors_arrive_as_the_type_they_were_raised_as(kind, attached, owner, monkeypatch):
    def fail(name):
        raise kind("what, where, got and fix: " + "é" * 3_000)

    monkeypatch.setattr(owner, "topic", fail)
    with pytest.raises(kind, match="what, where, got and fix") as caught:
        attached.topic("t")
    assert type(caught.value) is kind
    assert not attached.lost


def test_an_error_of_an_append_or_a_fetch_arrives_too(attached, owner, columns):
    owner.create_topic("t")
    producer = attached.init_producer()
    with pytest.raises(UnknownTopic):
        attached.append([Append("none", 0, columns(100_000), producer, 0)])
    with pytest.raises(errors.OffsetOutOfRange):
        attached.fetch({T0: 99})
    with pytest.raises(errors.OutOfOrderSequence):
        attached.append(
            [Append("t", 0, columns(1), producer, 0), Append("t", 0, columns(1), producer, 9)]
        )
    # records before the refused ones are stored
    assert attached.offsets([T0])[T0].high_watermark == 1


def test_an_error_that_names_a_folder_whose_name_is_not_utf8_arrives(attached, owner, monkeypatch):
    """Before, the client got an error about the encoding instead."""

    def fail(_name):
        raise errors.DiskFull(f"cannot append to {os.fsdecode(b'/bad' + bytes([255]))}")

    monkeypatch.setattr(owner, "topic", fail)
    with pytest.raises(errors.DiskFull, match=r"cannot append to /bad\\udcff"):
        attached.topic("t")


@pytest.mark.parametrize(
    "call",
    [
        lambda broker: broker.topic("\ud800"),
        lambda broker: broker.create_topic("\ud800"),
        lambda broker: broker.alter_config({"\ud800": "1"}),
    ],
)
def test_names_that_are_no_text_are_refused(attached, owner, call):
    for broker in (owner, attached):
        with pytest.raises(errors.InvalidRequest):
            call(broker)
    assert attached.topics() == owner.topics()


def test_an_unexpected_failure_of_the_owner_is_reported_as_one(attached, owner, monkeypatch):
    monkeypatch.setattr(owner, "topic", lambda name: 1 / 0)
    with pytest.raises(StrandlineError, match="owner failed: ZeroDivisionError"):
        attached.topic("t")


def test_a_client_that_dies_before_it_is_answered_is_no_failure_of_the_owner(caplog):
    class Gone:
        def write(self, _answer):
            raise OSError("Unknown error writing metadata.")

    with pytest.raises(flight.FlightUnavailableError), _failures_sent():
        _answer(Gone(), messages.AppendAnswer([]))
    assert caplog.text == ""


def test_closing_is_harmless_when_repeated_and_final(attached):
    attached.close()
    attached.close()
    with pytest.raises(OwnerUnavailable, match="closed by this process"):
        attached.topics()


# Sessions -------------------------------------------------------------------------------------


def test_the_open_transaction_of_a_client_that_leaves_is_aborted(
    attached, owner, columns, eventually
):
    owner.create_topic("t")
    producer = attached.init_producer("me", timeout_ms=60_000)
    attached.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    attached.close()
    eventually(lambda: owner.offsets([T0])[T0].last_stable_offset == 3, timeout=5)
    assert owner.fetch({T0: 0})[T0].batches == []


def test_committed_records_of_a_client_that_leaves_stay(
    attached, owner, endpoint, columns, eventually
):
    owner.create_topic("t")
    producer = attached.init_producer("me")
    attached.append([Append("t", 0, columns(2), producer, 0, transactional=True)])
    attached.end_transaction(producer, commit=True)
    attached.close()
    eventually(lambda: len(endpoint.sessions) == 0, timeout=5)
    assert len(owner.fetch({T0: 0})[T0].batches[0]) == 2


def test_an_owner_that_closes_notifies_its_clients(attached, endpoint, eventually):
    endpoint.close()
    eventually(lambda: attached.lost, timeout=5)
    with pytest.raises(OwnerUnavailable, match="has closed the log"):
        attached.topics()


def test_a_waiting_fetch_does_not_hold_up_closing(attached, owner, endpoint):
    owner.create_topic("t")
    outcome = []

    def fetch():
        try:
            outcome.append(attached.fetch({T0: 0}, timeout=60))
        except OwnerUnavailable as error:
            outcome.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    start = time.monotonic()
    endpoint.close()
    thread.join(20)
    assert outcome
    assert time.monotonic() - start < 5


# Distrust of clients --------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "wrong", "a token of the testsX"])
def test_calls_without_the_token_are_refused(target, token):
    with pytest.raises(Unauthenticated, match="token"):
        FlightBroker(ConnectionTarget(target.location, token, "x"), deadline=5)
    client = flight.connect(target.location)
    for call in (
        lambda: list(client.do_action(flight.Action("ListTopics", b"\x90"))),
        lambda: client.do_get(flight.Ticket(b"")).read_all(),
        lambda: list(client.list_flights()),
    ):
        with pytest.raises(flight.FlightUnauthenticatedError):
            call()
    client.close()


def test_another_version_of_the_protocol_is_refused_with_both_named():
    assert check_version(encode(SessionHello(WIRE_VERSION, 1, "x"))).pid == 1
    for strange in (
        encode([99, {"new": "fields"}]),
        encode(SessionHello(WIRE_VERSION + 1, 1, "x")),
        b"",
        b"\xff" * 9,
    ):
        with pytest.raises(InvalidRequest, match=f"version {WIRE_VERSION}; run the same release"):
            check_version(strange)


@pytest.mark.parametrize("kind", ["InvalidRequest", "OfNoTypeThatWeKnow", "x" * 100_000])
def test_the_text_of_a_peers_error_is_bounded(kind):
    error = messages.error_of(messages.RemoteFailure(kind, "x" * 100_000))
    assert len(str(error)) <= 2 * messages.MAX_ERROR_CHARS + 2


def test_messages_are_bounded_and_typed():
    with pytest.raises(InvalidRequest, match="over the limit"):
        messages.decode(b"\0" * (messages.MAX_MESSAGE_BYTES + 1), requests.DescribeTopic)
    with pytest.raises(InvalidRequest, match="Expected `str`"):
        messages.decode(msgspec.msgpack.encode([1]), requests.DescribeTopic)
    with pytest.raises(InvalidRequest):
        messages.decode(
            msgspec.msgpack.encode(["t", 1, None, b"no schema", False]), requests.CreateTopic
        )


def test_an_unknown_call_is_refused(attached):
    class Format(requests.Request[None], frozen=True):
        pass

    with pytest.raises(InvalidRequest, match="no call named 'Format'"):
        attached._ask(Format())


def test_a_batch_with_wrong_lengths_is_refused_before_it_is_used(attached, owner):
    owner.create_topic("t")
    good = pa.array([b"x"], pa.binary())
    columns = pa.record_batch({"timestamp": pa.array([1], pa.int64()), "key": good, "value": good})
    (first, row) = batches.append_rows([Append("t", 0, columns, None, 0)])
    message = bytearray(row.data.column(0)[0].as_buffer())
    at = message.rindex(b"\x01\0\0\0")  # end of the last column's one value
    message[at : at + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(InvalidRecord):
        batches.read_appends([first, batches.StreamMessage(a_row(message), row.header)])


@pytest.mark.parametrize("seed", range(40))
def test_bits_flipped_in_transit_never_crash_the_owner(seed, columns):
    chance = random.Random(seed)
    (first, row) = batches.append_rows([Append("t", 0, columns(50), None, 0)])
    message = bytearray(row.data.column(0)[0].as_buffer())
    for _ in range(8):
        message[chance.randrange(len(message))] ^= 1 << chance.randrange(8)
    try:
        (append,) = batches.read_appends([first, batches.StreamMessage(a_row(message), row.header)])
    except InvalidRecord:
        return
    append.columns.validate(full=True)


def test_small_appends_are_checked_like_large_ones(columns):
    sent = batches.small_append([Append("t", 0, columns(2), ProducerIdentity(1, 0), 0)])
    sent = messages.decode(encode(sent), messages.SmallAppend)
    (append,) = batches.read_small_append(sent)
    assert append.columns.equals(columns(2))
    ((header, message),) = sent.batches
    broken = bytearray(message)
    at = broken.rindex(b"\x02\0\0\0")  # end of the last column's values
    broken[at : at + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(InvalidRecord):
        batches.read_small_append(messages.SmallAppend(sent.schemas, [(header, bytes(broken))]))
    with pytest.raises(InvalidRequest, match="schema 0 of the 0"):
        batches.read_small_append(messages.SmallAppend([], [(header, message)]))


def test_too_much_in_one_call_is_refused(columns, monkeypatch):
    monkeypatch.setattr(batches, "MAX_APPEND_BYTES", 1_000)
    rows = batches.append_rows([Append("t", 0, columns(1_000), None, 0)])
    with pytest.raises(RecordTooLarge, match="several calls"):
        batches.read_appends(rows)


def test_a_client_may_not_append_without_a_producer(attached, owner, columns):
    owner.create_topic("t")
    with pytest.raises(InvalidRequest, match="needs a producer"):
        attached.append([Append("t", 0, columns(1))])


def test_an_ended_session_refuses_calls(attached, endpoint, owner, eventually):
    session = endpoint.sessions.find(attached._connection.session.welcome.session)
    assert session.end(owner) == []
    with pytest.raises(OwnerUnavailable, match="session has ended"):
        attached.init_producer()
    assert attached.lost


def test_creating_an_existing_topic_is_still_an_error(attached):
    attached.create_topic("t")
    with pytest.raises(TopicExists):
        attached.create_topic("t")
    with pytest.raises((InvalidTxnState, errors.ProducerFenced)):
        attached.end_transaction(ProducerIdentity(10**6, 0), commit=True)


def test_two_endpoints_can_serve_one_owner(owner, endpoint, attached, tmp_path):
    other = FlightEndpoint(owner, f"grpc+unix://{tmp_path}/s2", token="other")
    broker = FlightBroker(ConnectionTarget(f"grpc+unix://{tmp_path}/s2", "other", "x"), deadline=5)
    broker.create_topic("t")
    assert attached.topic("t") == broker.topic("t")
    broker.close()
    other.close()


class ClosedUnderIt:
    """A client that another thread closes, with its session, while a call is in progress."""

    def __init__(self, broker):
        self.broker = broker
        self.client = broker._connection._client

    def __getattr__(self, name):
        def called(*args, **options):
            self.broker._connection.session.close()
            self.client.close()
            return getattr(self.client, name)(*args, **options)

        return called


@pytest.mark.parametrize("call", ["topics", "append", "large append", "fetch"])
def test_a_call_may_be_repeated_if_another_thread_closes_its_connection(
    call, attached, owner, columns, monkeypatch
):
    """The call must raise OwnerUnavailable, or it is not repeated at the next owner."""
    owner.create_topic("t")
    producer = owner.init_producer()
    count = 100_000 if call == "large append" else 1
    batch = Append("t", 0, columns(count), producer, 0)
    monkeypatch.setattr(attached._connection, "_client", ClosedUnderIt(attached))
    with pytest.raises(OwnerUnavailable):
        if "append" in call:
            attached.append([batch])
        elif call == "fetch":
            attached.fetch({T0: 0})
        else:
            attached.topics()
