"""A client over TCP may do what its token has rights for, to objects that it has opened itself."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.broker import Broker
from strandline.changelog.embedded import document
from strandline.changelog.errors import (
    CorruptLog,
    FutureFormat,
    InvalidConfig,
    InvalidRequest,
    InvalidTopic,
    MemberFenced,
    NotAuthorized,
    OwnerUnavailable,
    ProducerFenced,
    QuotaExceeded,
    Unauthenticated,
    UnknownPin,
    UnknownTopic,
)
from strandline.changelog.extents import OffsetSpan
from strandline.changelog.flight import held, hello, requests, tokens
from strandline.changelog.flight.address import connect
from strandline.changelog.flight.authorization import NEEDED, VISIBLE, Permit
from strandline.changelog.flight.failover import FailoverBroker
from strandline.changelog.flight.grants import Granting, Grants
from strandline.changelog.flight.rights import KINDS, NONE, AuthorizedToken, Rights, rights_of_app
from strandline.changelog.flight.serve import ServedLog, serve
from strandline.changelog.groups import GroupMember, Subscription
from strandline.changelog.layout import TOKENS
from strandline.changelog.local_storage import LocalStorage
from strandline.changelog.log import Log
from strandline.changelog.pins import PinName, PinnedRange, there
from strandline.changelog.records import Append, CommittedOffset, ProducerIdentity, TopicPartition
from tests.hostile.bombs import batch

ADMIN = "sixteen-or-more-characters"
MINE, OTHERS = TopicPartition("mine", 0), TopicPartition("others", 0)
AT = CommittedOffset(1)
PIN = PinName("query", "a", "b")
HOUR_MS = 3_600_000
ALL_OF_MINE = Rights(["mine*"], ["mine*"], ["mine*"], ["mine*"])
Eventually = Callable[..., None]


@pytest.fixture
def storage_of_log(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "log")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedLog]:
    served = serve(tmp_path / "log", listen="127.0.0.1:0", token=ADMIN)
    for name in ("mine", "others"):
        served.broker.create_topic(name, config={"retention.ms": "-1"})
        served.broker.append([Append(name, 0, batch(3), served.broker.init_producer(), 0)])
        served.broker.commit_offsets(name, {TopicPartition(name, 0): AT})
    yield served
    served.close()


class Clients:
    """Clients of a served log, each with its own token."""

    def __init__(self, served: ServedLog, storage: LocalStorage) -> None:
        self.served = served
        self.storage = storage
        self._numbers = itertools.count()
        self._stack = contextlib.ExitStack()

    def with_rights(self, rights: Rights) -> FailoverBroker:
        """Return a client with a new token, named "t0", "t1", …"""
        made = tokens.create(self.storage, f"t{next(self._numbers)}", rights)
        return self.with_token(made.token)

    def with_token(self, token: str, url: str = "") -> FailoverBroker:
        """Return one more client with a token."""
        client = connect(url or self.served.url, token=token, deadline=30)
        self._stack.callback(client.close)
        return client

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def clients(served: ServedLog, storage_of_log: LocalStorage) -> Iterator[Clients]:
    clients = Clients(served, storage_of_log)
    yield clients
    clients.close()


def contents(broker: Broker) -> Any:
    """Return everything that a call without a right could have changed."""
    names = [info.name for info in broker.topics() if not info.internal]
    partitions = [TopicPartition(name, 0) for name in names]
    ends = {tp: (at.log_start, at.high_watermark) for tp, at in broker.offsets(partitions).items()}
    committed = {group: broker.committed(group) for group in broker.groups()}
    members = {group: broker.describe_group(group).members for group in broker.groups()}
    return broker.topics(), ends, committed, members, broker.describe_config()


def append(broker: Broker, topic: str = "mine", **how: Any) -> ProducerIdentity:
    """Append one record with a new producer."""
    producer = broker.init_producer(how.pop("transactional_id", None))
    broker.append([Append(topic, 0, batch(1), producer, 0, **how)])
    return producer


# Each call needs a right -----------------------------------------------------------------------


def test_every_call_declares_the_right_it_needs() -> None:
    assert {*requests.REQUESTS.values()} <= NEEDED.keys()
    assert {*VISIBLE} <= NEEDED.keys()


def test_a_call_that_declares_no_right_is_refused_to_all() -> None:
    class Forgotten(msgspec.Struct):
        pass

    permit = Permit(AuthorizedToken("admin", "", Rights(admin=True)), Granting(b"k"))
    with pytest.raises(NotAuthorized, match="Forgotten"):
        permit.check(Forgotten())


def without(kind: str) -> Rights:
    """Return all rights on "mine", except those of one kind."""
    return Rights(**{each: ["mine*"] for each in KINDS if each != kind})


SCHEMA = pa.schema([pa.field("x", pa.int64())])
REFUSED: dict[str, tuple[str, Callable[[Broker], object]]] = {
    "fetch": ("read:mine", lambda b: b.fetch({MINE: 0})),
    "fetch by time": ("read:mine", lambda b: b.offset_for_time(MINE, 0)),
    "sizes": ("read:mine", lambda b: b.extents({MINE: OffsetSpan(0, 1)}, extent_bytes=1)),
    "pin": (
        "read:mine",
        lambda b: there(b.pins).hold(PIN, {MINE: PinnedRange("0", 0, 1)}, timeout_ms=HOUR_MS),
    ),
    "pin nothing": ("read:NAME", lambda b: there(b.pins).hold(PIN, {}, timeout_ms=HOUR_MS)),
    "use a pin": ("read:NAME", lambda b: there(b.pins).use(PIN)),
    "release pins": ("read:NAME", lambda b: there(b.pins).release("query", "b")),
    "subscribe": ("read:mine", lambda b: b.join_group("mine", Subscription(["mine"]))),
    "subscribe together": (
        "read:mine",
        lambda b: b.join_group("mine", Subscription([], together=[["mine"]])),
    ),
    "commit offsets of a topic": ("read:mine", lambda b: b.commit_offsets("mine", {MINE: AT})),
    "init a producer": ("produce:NAME", lambda b: b.init_producer()),
    "create a topic": ("produce:mine-new", lambda b: b.create_topic("mine-new")),
    "extend a schema": ("produce:mine", lambda b: b.alter_topic("mine", schema=SCHEMA)),
    "join a group": ("group:mine", lambda b: b.join_group("mine", Subscription(["mine"]))),
    "commit offsets": ("group:mine", lambda b: b.commit_offsets("mine", {MINE: AT})),
    "read offsets": ("group:mine", lambda b: b.committed("mine")),
    "describe a group": ("group:mine", lambda b: b.describe_group("mine")),
    "take a transactional id": ("transaction:mine", lambda b: b.init_producer("mine")),
    "delete a topic": ("admin", lambda b: b.delete_topic("mine")),
    "change settings of a topic": (
        "admin",
        lambda b: b.alter_topic("mine", {"retention.ms": "1"}),
    ),
    "add partitions": ("admin", lambda b: b.alter_topic("mine", partitions=9)),
    "create a reserved topic": ("produce:__x", lambda b: b.create_topic("__x", internal=True)),
    "create an internal topic": ("admin", lambda b: b.create_topic("mine-x", internal=True)),
    "create many partitions": ("admin", lambda b: b.create_topic("mine-x", 1_025)),
    "delete records": ("admin", lambda b: b.delete_records(MINE, 2)),
    "clean": ("admin", lambda b: b.clean(["mine"])),
    "see settings": ("admin", lambda b: b.describe_config()),
    "change settings": ("admin", lambda b: b.alter_config({"log.retention.ms": "1"})),
    "take a snapshot": ("admin", lambda b: b.snapshots and b.snapshots.take()),
    "release a snapshot": ("admin", lambda b: b.snapshots and b.snapshots.release("0" * 32)),
}


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_without_its_right_is_refused_and_changes_nothing(
    served: ServedLog, clients: Clients, call: str
) -> None:
    right, do = REFUSED[call]
    broker = clients.with_rights(without(right.partition(":")[0]))
    before = contents(served.broker)
    with pytest.raises(
        NotAuthorized, match=rf"the token 't0' \(id [0-9a-f]{{12}}\) lacks.*{right}"
    ):
        do(broker)
    assert contents(served.broker) == before


@pytest.mark.parametrize(
    "do",
    [
        lambda b: b.fetch({OTHERS: 0}),
        lambda b: b.fetch({MINE: 0, OTHERS: 0}),
        lambda b: b.topic("others"),
        lambda b: b.offsets([OTHERS]),
        lambda b: append(b, "others"),
        lambda b: b.create_topic("others-new"),
        lambda b: b.committed("others"),
        lambda b: b.commit_offsets("others", {MINE: AT}),
        lambda b: b.commit_offsets("mine", {OTHERS: AT}),
        lambda b: b.join_group("others", Subscription(["mine"])),
        lambda b: b.join_group("mine", Subscription(["others"])),
        lambda b: b.init_producer("others"),
        lambda b: b.fetch({TopicPartition("__consumer_offsets", 0): 0}),
        lambda b: b.topic("there is none"),
    ],
)
def test_a_right_applies_to_its_names_only(
    served: ServedLog, clients: Clients, do: Callable[[Broker], object]
) -> None:
    broker = clients.with_rights(ALL_OF_MINE)
    before = contents(served.broker)
    with pytest.raises(NotAuthorized):
        do(broker)
    assert contents(served.broker) == before


def test_a_star_does_not_include_the_logs_own_topics(clients: Clients) -> None:
    broker = clients.with_rights(Rights(["*"], ["*"], ["*"], ["*"]))
    assert broker.fetch({OTHERS: 0})[OTHERS].batches
    with pytest.raises(NotAuthorized, match="read:__consumer_offsets"):
        broker.fetch({TopicPartition("__consumer_offsets", 0): 0})
    assert {info.name for info in broker.topics()} == {"mine", "others"}


def test_lists_show_what_the_token_may_see(served: ServedLog, clients: Clients) -> None:
    served.broker.create_topic("mine-c", config={"cleanup.policy": "compact"})
    served.broker.create_topic("others-c", config={"cleanup.policy": "compact"})
    for name in ("mine-c", "others-c"):
        append(served.broker, name)
    broker = clients.with_rights(ALL_OF_MINE)
    assert [info.name for info in broker.topics()] == ["mine", "mine-c"]
    assert broker.groups() == ["mine"]
    assert {status.topic for status in broker.cleaning()} <= {"mine-c"}
    assert broker.topic("mine").partitions == 1
    with pytest.raises(UnknownTopic) as unknown:
        broker.topic("mine-unknown")
    assert "others" not in str(unknown.value)


def test_with_its_rights_a_client_reads_and_writes(served: ServedLog, clients: Clients) -> None:
    made = tokens.create(clients.storage, "app", ALL_OF_MINE)
    with changelog.open(served.url, token=made.token) as log:
        log.create_topic("mine-new")
        with log.producer(transactional_id="mine") as producer:
            for number in range(3):
                producer.begin_transaction()
                producer.send("mine-new", b"%d" % number)
                producer.commit_transaction()
        with log.consumer(group="mine", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["mine-new"])
            assert len(taken(consumer, 3)) == 3
            consumer.commit()
        assert served.broker.committed("mine")[TopicPartition("mine-new", 0)].offset > 0


def taken(consumer: Any, count: int) -> list[Any]:
    """Poll until there are `count` records."""
    found: list[Any] = []
    while len(found) < count:
        polled = consumer.poll(timeout=30)
        assert polled
        found += [record for batch in polled for record in batch.offsets.to_pylist()]
    return found


def test_the_single_token_has_all_rights(clients: Clients) -> None:
    broker = clients.with_token(ADMIN)
    assert contents(broker)[1].keys() == {MINE, OTHERS}
    append(broker, "others")
    broker.alter_topic("mine", {"retention.ms": "1000000"})
    broker.delete_topic("others")


def test_an_app_needs_its_own_names_and_its_inputs_and_outputs(
    served: ServedLog, clients: Clients, tmp_path: Path
) -> None:
    served.broker.create_topic("sales", 2)
    rights = rights_of_app("shop", ["sales"], ["late"])
    made = tokens.create(clients.storage, "worker", rights)
    url = f"{served.url}?token={made.token}"
    app = sl.App("shop", log=url, state_dir=tmp_path / "state", commit_interval_ms=10)
    sales = app.topic("sales", value=int, partitions=2)
    late = app.topic("late", value=int)
    totals = app.store("totals", value=int, default=0)
    by_day = app.repartition(sales, key=lambda record: str(record.value), name="by-value")

    @app.task(by_day, stores=[totals])
    def add(record: Any) -> None:
        totals[record.key] += record.value
        late.send(record.key, totals[record.key])

    with changelog.open(served.url, token=ADMIN) as log:
        log.append("sales", [{"key": b"a", "value": msgspec.msgpack.encode(n)} for n in (1, 2, 2)])
    app.run(until="idle")
    assert app.query(totals).to_dict() == {"1": 1, "2": 4}
    before = {info.name for info in served.broker.topics() if not info.internal}
    assert {"late", "shop-by-value-repartition"} <= before


def test_a_missing_right_is_not_the_records_fault(
    served: ServedLog, clients: Clients, tmp_path: Path
) -> None:
    rights = rights_of_app("shop", ["mine"], [])
    made = tokens.create(clients.storage, "worker", rights)
    url = f"{served.url}?token={made.token}"
    app = sl.App("shop", log=url, state_dir=tmp_path / "state", commit_interval_ms=10)
    mine = app.topic("mine", key=bytes, value=bytes)

    @app.task(mine, on_error="skip")
    def send(record: Any) -> None:
        with changelog.open(url) as log:
            log.append("others", [{"value": b"x"}])

    with pytest.raises(NotAuthorized, match="'worker'.*others"):
        app.run(until="idle")
    assert MINE not in served.broker.committed("shop")


# A client acts on what it has opened -----------------------------------------------------------


def test_another_client_cannot_end_or_extend_a_transaction(clients: Clients) -> None:
    """Neither a client with all rights nor one with the same token may do it."""
    made = tokens.create(clients.storage, "mine", ALL_OF_MINE)
    holder = clients.with_token(made.token)
    producer = append(holder, transactional_id="mine", transactional=True)
    for other in (clients.with_token(ADMIN), clients.with_token(made.token)):
        for commit in (True, False):
            with pytest.raises(ProducerFenced, match="not opened by this client"):
                other.end_transaction(producer, commit=commit)
        with pytest.raises(ProducerFenced):
            other.append([Append("mine", 0, batch(1), producer, 1, transactional=True)])
        with pytest.raises(ProducerFenced):
            other.add_offsets(producer, "mine", {MINE: AT})
        other.close()  # the end of its session does not end it either
    holder.add_offsets(producer, "mine", {MINE: CommittedOffset(3)})
    following = holder.end_transaction(producer, commit=True)
    assert holder.committed("mine")[MINE].offset == 3
    holder.append([Append("mine", 0, batch(1), following, 0, transactional=True)])
    holder.end_transaction(following, commit=True)
    assert holder.offsets([MINE])[MINE].last_stable_offset == 7


def test_guessed_producer_ids_are_refused(served: ServedLog, clients: Clients) -> None:
    holder, other = clients.with_rights(ALL_OF_MINE), clients.with_rights(ALL_OF_MINE)
    producer = append(holder)
    end = holder.offsets([MINE])[MINE].high_watermark
    for producer_id in range(producer.producer_id + 3):
        for epoch in range(3):
            guessed = ProducerIdentity(producer_id, epoch)
            for sequence in (0, 1):
                with pytest.raises(ProducerFenced):
                    other.append([Append("mine", 0, batch(1), guessed, sequence)])
    assert holder.offsets([MINE])[MINE].high_watermark == end
    holder.append([Append("mine", 0, batch(1), producer, 1)])


def test_the_grant_of_a_predecessor_does_not_apply_to_its_successor(clients: Clients) -> None:
    """Producers of one transactional id have the same producer id, and differ only in the epoch."""
    first, second = clients.with_rights(ALL_OF_MINE), clients.with_rights(ALL_OF_MINE)
    old = first.init_producer("mine")
    new = append(second, transactional_id="mine", transactional=True)
    assert new.producer_id == old.producer_id
    assert new.epoch > old.epoch
    with pytest.raises(ProducerFenced, match="not opened by this client"):
        first.end_transaction(new, commit=False)
    second.end_transaction(new, commit=True)


def test_a_grant_is_for_one_token_and_one_object() -> None:
    granting = Granting(b"key of the log")
    producer, member = ProducerIdentity(1, 0), ("g", "m")
    presented = granting.grant("a", producer) + granting.grant("a", member)
    granting.check("a", presented, [producer, member])
    granting.check("a", b"", [])
    for token, other in (
        ("b", producer),
        ("", producer),
        ("a", ProducerIdentity(1, 1)),
        ("a", ProducerIdentity(2, 0)),
    ):
        with pytest.raises(ProducerFenced):
            granting.check(token, presented, [other])
    for token, named in (("b", member), ("a", ("g", "n")), ("a", ("gm", ""))):
        with pytest.raises(MemberFenced):
            granting.check(token, presented, [named])
    with pytest.raises(ProducerFenced):
        Granting(b"key of another log").check("a", presented, [producer])


def test_a_client_keeps_a_bounded_number_of_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.changelog.flight.grants.MAX_KEPT_GRANTS", 3)
    grants = Grants()
    for number in range(10):
        for epoch in range(10):
            grants.keep(ProducerIdentity(number, epoch), bytes([number, epoch]))
    kept = [
        (number, epoch)
        for number in range(10)
        for epoch in range(10)
        if grants.presented([ProducerIdentity(number, epoch)])
    ]
    assert kept == [(number, epoch) for number in (7, 8, 9) for epoch in (8, 9)]


def test_another_client_cannot_call_as_a_member(served: ServedLog, clients: Clients) -> None:
    made = tokens.create(clients.storage, "mine", ALL_OF_MINE)
    holder = clients.with_token(made.token)
    member = holder.join_group("mine", Subscription(["mine"]))
    holder.heartbeat(member, 1, 0, [])
    holder.heartbeat(member, 2, 1, [MINE])
    before = served.broker.describe_group("mine").members
    for other in (clients.with_token(ADMIN), clients.with_token(made.token)):
        mine = other.init_producer("mine")
        for speak in (
            lambda b=other: b.heartbeat(member, 3, 1, []),
            lambda b=other: b.leave_group(member),
            lambda b=other: b.commit_offsets("mine", {MINE: AT}, member_id=member.member_id),
            lambda b=other, p=mine: b.add_offsets(
                p, "mine", {MINE: AT}, member_id=member.member_id
            ),
        ):
            with pytest.raises(MemberFenced, match="not opened by this client"):
                speak()
        other.close()
    assert served.broker.describe_group("mine").members == before
    holder.commit_offsets("mine", {MINE: CommittedOffset(2)}, member_id=member.member_id)
    holder.leave_group(member)
    assert served.broker.describe_group("mine").members == []


def test_pins_belong_to_their_token(served: ServedLog, clients: Clients) -> None:
    made = tokens.create(clients.storage, "mine", ALL_OF_MINE)
    holder, other = clients.with_token(made.token), clients.with_rights(ALL_OF_MINE)
    span = {MINE: PinnedRange(holder.topic("mine").topic_id, 0, 3)}
    assert there(holder.pins).hold(PIN, span, timeout_ms=HOUR_MS) == span
    there(other.pins).release(PIN.holder, PIN.until)
    with pytest.raises(UnknownPin):
        there(other.pins).use(PIN)
    with pytest.raises(UnknownPin):
        there(other.pins).fetch(PIN, MINE, 0, max_bytes=1000)
    there(other.pins).hold(PIN._replace(since="z"), span, timeout_ms=HOUR_MS)
    again = clients.with_token(made.token)  # like a restarted driver, or an executor
    assert there(again.pins).use(PIN) == span
    assert there(again.pins).fetch(PIN, MINE, 0, max_bytes=1000).batches
    there(again.pins).release(PIN.holder, PIN.until)
    with pytest.raises(UnknownPin):
        there(holder.pins).use(PIN)


def test_a_token_holds_a_bounded_number_of_pins(
    served: ServedLog, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MAX_PINS", 3)
    reader, other = (clients.with_rights(Rights(read=["mine"])) for _ in range(2))
    span = {MINE: PinnedRange(reader.topic("mine").topic_id, 0, 3)}

    def hold(broker: Broker, holder: str, since: str = "a", until: str = "b") -> object:
        name = PinName(holder, since, until)
        return there(broker.pins).hold(name, span, timeout_ms=HOUR_MS)

    for holder in ("x", "y", "z", "z"):
        hold(reader, holder)
    with pytest.raises(QuotaExceeded, match="3 pins"):
        hold(reader, "w")
    hold(other, "w")
    for released in ("x", "z"):
        there(reader.pins).release(released, "b")
    hold(reader, "w")
    hold(reader, "w", until="c")  # one more, because it begins at the same position
    with pytest.raises(QuotaExceeded):
        hold(reader, "v")
    there(reader.pins).release("w", "c")
    hold(reader, "y", since="d")  # releases the one that begins at "a"
    hold(reader, "v")
    with pytest.raises(QuotaExceeded):
        hold(reader, "u")


def test_a_token_joins_groups_with_a_bounded_number_of_members(
    served: ServedLog, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MAX_MEMBERS_OF_TOKEN", 3)
    monkeypatch.setattr(held, "PRUNE_S", 0.0)
    made = tokens.create(clients.storage, "app", ALL_OF_MINE)
    first, second = clients.with_token(made.token), clients.with_token(made.token)
    other = clients.with_rights(ALL_OF_MINE)

    def join(broker: Broker, number: int, **how: Any) -> GroupMember:
        return broker.join_group(f"mine-{number}", Subscription(["mine"], **how))

    static = {"instance": "one", "session_timeout_ms": 60_000}
    join(first, 0, **static)
    left = join(second, 1)
    join(second, 2)
    for broker in (first, second):
        with pytest.raises(QuotaExceeded, match="3 members"):
            join(broker, 3)
    join(other, 3)
    second.leave_group(left)
    join(first, 1)
    first.close()  # its member of group 1 leaves, and the static one stays
    served.broker.leave_group(served_member(served, "mine-2"))
    join(second, 4)
    with pytest.raises(QuotaExceeded):
        for number in range(5, 8):
            join(second, number)


def served_member(served: ServedLog, group: str) -> GroupMember:
    [member] = served.broker.describe_group(group).members
    return GroupMember(group, member.member_id)


def test_a_token_joins_groups_with_bounded_subscriptions(
    clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "MAX_MEMBER_CHARACTERS", 5_000)
    broker = clients.with_rights(ALL_OF_MINE)
    for subscription in (
        Subscription([f"mine-{number:0100}" for number in range(50)]),
        Subscription(["mine"], together=[[f"mine-{number:0100}"] for number in range(50)]),
        Subscription(["mine"], tasks=[["t"]] * 50),
        Subscription(["mine"], servers=["tcp://" + "x" * 1_900] * 3),
    ):
        with pytest.raises(QuotaExceeded, match="characters"):
            broker.join_group("mine", subscription)
    broker.join_group("mine", Subscription(["mine"]))


@pytest.mark.parametrize("name", ["mine" + "x" * 300, "mine\n", "mine/x", "mine é"])
def test_a_member_subscribes_to_names_that_topics_may_have(clients: Clients, name: str) -> None:
    broker = clients.with_rights(ALL_OF_MINE)
    for subscription in (Subscription([name]), Subscription(["mine"], together=[["mine", name]])):
        with pytest.raises(InvalidTopic):
            broker.join_group("mine", subscription)


# After a loss ----------------------------------------------------------------------------------


def test_producers_and_members_continue_with_a_restarted_server(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    served = serve(folder, listen="127.0.0.1:0", token=ADMIN)
    address = served.url.partition("//")[2]
    served.broker.create_topic("mine", config={"retention.ms": "-1"})
    made = tokens.create(LocalStorage(folder), "app", ALL_OF_MINE)
    holder = connect(served.url, token=made.token, deadline=30)
    producer = append(holder)
    committing = append(holder, transactional_id="mine", transactional=True)
    following = holder.end_transaction(committing, commit=True)
    served.close()
    served = serve(folder, listen=address, token=ADMIN)
    holder.append([Append("mine", 0, batch(1), producer, 1)])
    assert holder.end_transaction(committing, commit=True) == following
    other = connect(served.url, token=made.token, deadline=30)
    with pytest.raises(ProducerFenced):
        other.append([Append("mine", 0, batch(1), producer, 2)])
    for client in (holder, other, served):
        client.close()


def test_members_stay_when_only_their_connection_is_lost(
    served: ServedLog, clients: Clients
) -> None:
    holder = clients.with_rights(ALL_OF_MINE)
    static = Subscription(["mine"], instance="one", session_timeout_ms=60_000)
    member = holder.join_group("mine", static)
    holder.heartbeat(member, 1, 0, [])
    served._endpoint.clients.drop_all()
    granted = holder.heartbeat(member, 2, 1, [MINE])
    assert list(granted.partitions) == [MINE]
    assert [one.member_id for one in served.broker.describe_group("mine").members] == [
        member.member_id
    ]


def test_remote_clients_continue_when_another_process_becomes_the_owner(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with changelog.open(folder) as owner:
        owner.create_topic("mine", config={"retention.ms": "-1"})
        served = serve(folder, listen="127.0.0.1:0", token=ADMIN)
        assert not served.broker.owning
        made = tokens.create(LocalStorage(folder), "app", ALL_OF_MINE)
        holder = connect(served.url, token=made.token, deadline=30)
        producer = append(holder)
    holder.append([Append("mine", 0, batch(1), producer, 1)])
    assert served.broker.owning
    assert holder.offsets([MINE])[MINE].high_watermark == 2
    holder.close()
    served.close()


# Revoking ---------------------------------------------------------------------------------------


def test_revoking_ends_the_session_of_an_open_connection(
    served: ServedLog, clients: Clients, eventually: Eventually
) -> None:
    idle = clients.with_rights(ALL_OF_MINE)
    producer = append(idle, transactional_id="mine", transactional=True)
    idle.join_group("mine", Subscription(["mine"]))
    kept = clients.with_rights(ALL_OF_MINE)
    assert served.broker.offsets([MINE])[MINE].last_stable_offset == 3
    tokens.revoke(clients.storage, "t0")
    # The client makes no more calls, so only the end of its connection ends its sessions.
    eventually(lambda: served.broker.describe_group("mine").members == [])
    eventually(lambda: served.broker.offsets([MINE])[MINE].last_stable_offset == 5)
    eventually(lambda: len(served._endpoint.clients) == 1)
    with pytest.raises((Unauthenticated, OwnerUnavailable)):
        idle.end_transaction(producer, commit=True)
    append(kept)


def test_the_first_call_after_revoking_is_refused(
    served: ServedLog, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the watcher only the call itself can detect the revocation.
    served._endpoint._closed.set()
    served._endpoint._watcher.join()
    client = clients.with_rights(ALL_OF_MINE)
    assert client.fetch({MINE: 0})[MINE].batches
    tokens.revoke(clients.storage, "t0")
    before = contents(served.broker)
    with pytest.raises(Unauthenticated, match="does not accept this token"):
        client.commit_offsets("mine", {MINE: CommittedOffset(3)})
    assert contents(served.broker) == before


def test_a_new_token_of_the_same_name_does_not_reinstate_a_revoked_one(clients: Clients) -> None:
    made = tokens.create(clients.storage, "app", ALL_OF_MINE)
    client = clients.with_token(made.token)
    tokens.revoke(clients.storage, made.stored.id)
    tokens.create(clients.storage, "app", ALL_OF_MINE)
    with pytest.raises(Unauthenticated):
        client.topics()


# The document -----------------------------------------------------------------------------------


def test_the_document_contains_no_token_and_is_private_to_its_user(
    served: ServedLog, clients: Clients, tmp_path: Path
) -> None:
    made = tokens.create(clients.storage, "app", ALL_OF_MINE)
    path = tmp_path / "log" / TOKENS
    content = path.read_bytes()
    assert made.token.encode() not in content
    assert made.token.split("_", 2)[2].encode() not in content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    known = msgspec.json.decode(document.unpack("tokens", content, TOKENS))["tokens"][0]
    for secret in (known["stored_key"], known["server_key"]):
        with pytest.raises(Unauthenticated):
            connect(served.url, token=f"sl_{made.stored.id}_{secret}", deadline=5)
    assert hello.token_id(made.token) == made.stored.id


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    replace(path, bytes(content))


def later_version(path: Path) -> None:
    replace(path, path.read_bytes().replace(b"tokens 1 ", b"tokens 2 ", 1))


def other_fields(path: Path) -> None:
    """A later version could mean unknown fields as a restriction."""
    found = msgspec.json.decode(document.unpack("tokens", path.read_bytes(), TOKENS))
    found["tokens"][0]["from_addresses"] = ["192.0.2.1"]
    replace(path, document.encoded("tokens", found, TOKENS))


def no_rights(path: Path) -> None:
    found = msgspec.json.decode(document.unpack("tokens", path.read_bytes(), TOKENS))
    found["tokens"][0]["rights"] = {}
    replace(path, document.encoded("tokens", found, TOKENS))


def replace(path: Path, content: bytes) -> None:
    path.with_suffix(".new").write_bytes(content)
    os.replace(path.with_suffix(".new"), path)


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (damage, CorruptLog, "none has access.*checksum.*create new tokens"),
        (later_version, FutureFormat, "upgrade"),
        (other_fields, CorruptLog, "none has access.*from_addresses"),
        (no_rights, CorruptLog, "none has access.*needs a right"),
    ],
)
def test_tokens_that_cannot_be_read_give_no_access(
    tmp_path: Path,
    spoil: Callable[[Path], None],
    error: type[Exception],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "log"
    served = serve(folder, listen="127.0.0.1:0", token=ADMIN)
    storage = LocalStorage(folder)
    made = tokens.create(storage, "app", ALL_OF_MINE)
    client = connect(served.url, token=made.token, deadline=30)
    client.topics()
    spoil(folder / TOKENS)
    with caplog.at_level(logging.ERROR, "strandline"):
        with pytest.raises(Unauthenticated):
            client.topics()
        with pytest.raises(Unauthenticated):
            connect(served.url, token=made.token, deadline=30)
    assert any("has access" in record.getMessage() for record in caplog.records)
    admin = connect(served.url, token=ADMIN, deadline=30)
    admin.topics()
    for broker in (client, admin, served):
        broker.close()
    for refused in (
        lambda: serve(folder, listen="127.0.0.1:0", token=ADMIN),
        lambda: tokens.create(storage, "more", ALL_OF_MINE),
        lambda: tokens.revoke(storage, "app"),
        lambda: tokens.stored_tokens(storage),
    ):
        with pytest.raises(error, match=said):
            refused()


def test_removing_the_document_revokes_all_tokens(
    served: ServedLog, clients: Clients, tmp_path: Path
) -> None:
    client = clients.with_rights(ALL_OF_MINE)
    (tmp_path / "log" / TOKENS).unlink()
    with pytest.raises(Unauthenticated):
        client.topics()
    append(clients.with_token(ADMIN))


def test_tokens_in_a_document_of_the_first_version_are_valid(tmp_path: Path) -> None:
    """The document is the one in docs/format.md, byte for byte."""
    token = "sl_00ff00ff00ff_" + "s" * 43
    body = (
        b'{"grant_key": "' + b"A" * 43 + b'=", "tokens": [{"id": "00ff00ff00ff", "name": "app", '
        b'"created_ms": 1, "stored_key": "sYKhw7VZqL+kJ8gy/3uVhRn6LDfjkfJbr2oknnYB21E=", '
        b'"server_key": "ep0fplSe0sS2bgbUCgkmDmwhYwu7i409qxCoeAl9Be0=", "rights": {"read": ["mine"], '
        b'"produce": [], "group": [], "transaction": [], "admin": false}}]}'
    )
    folder = tmp_path / "log"
    changelog.open(folder).close()
    (folder / TOKENS).write_bytes(document.pack("tokens", body, TOKENS))
    with (
        contextlib.closing(serve(folder, listen="127.0.0.1:0", token=ADMIN)) as served,
        changelog.open(served.url, token=token) as log,
    ):
        assert log.topics() == []
        with pytest.raises(NotAuthorized):
            log.create_topic("mine")


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        ("", ALL_OF_MINE),
        ("a b", ALL_OF_MINE),
        ("x" * 65, ALL_OF_MINE),
        ("é", ALL_OF_MINE),
        ("a", NONE),
        ("a", Rights(read=[""])),
        ("a", Rights(read=["a*b"])),
        ("a", Rights(read=["a b"])),
        ("a", Rights(read=["a\n"])),
        ("a", Rights(group=["x"] * 1001)),
    ],
)
def test_invalid_tokens_are_refused(tmp_path: Path, name: str, rights: Rights) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(InvalidConfig):
        tokens.create(storage, name, rights)
    assert not storage.exists(TOKENS)


def test_the_admin_token_cannot_look_like_a_created_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="has an id"):
        serve(tmp_path / "log", listen="127.0.0.1:0", token="sl_abc_sixteen-or-more")


def test_processes_of_the_same_user_need_no_rights(served: ServedLog, tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log") as log:
        producer = log.broker.init_producer()
        log.broker.append([Append("mine", 0, batch(1), producer, 0)])
        member = log.broker.join_group("mine", Subscription(["mine"]))
    assert isinstance(log, Log)
    served.broker.append([Append("mine", 0, batch(1), producer, 1)])
    with pytest.raises(InvalidRequest):
        served.broker.topic("none")
    assert isinstance(member, GroupMember)
