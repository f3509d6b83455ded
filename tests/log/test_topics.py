"""Topics: creation, description, changes, deletion, types, refusals."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidTopic,
    RecordTooLarge,
    SchemaMismatch,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from strandline.changelog.records import Append, TopicPartition
from tests.log.kit import START_MS, Client, World, columns

FLIGHT = pa.schema([pa.field("carrier", pa.string()), pa.field("delay", pa.float64())])


def typed(rows: list[dict[str, object] | None], schema: pa.Schema = FLIGHT) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "timestamp": pa.array([START_MS] * len(rows), pa.int64()),
            "key": pa.array([b"k"] * len(rows), pa.binary()),
            "value": pa.array(rows, pa.struct(list(schema))),
        }
    )


def test_topics_survive_a_crash_with_id_config_and_schema(world: World) -> None:
    made = world.owner.create_topic("typed", 3, config={"retention.ms": "5"}, schema=FLIGHT)
    world.crash()
    assert world.owner.topic("typed") == made
    assert [info.name for info in world.owner.topics()] == [
        "__consumer_offsets",
        "__transaction_state",
        "t",
        "typed",
    ]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "__mine", "ä"])
def test_invalid_topic_names_are_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidTopic):
        world.owner.create_topic(name)


def test_a_name_can_be_used_only_once(world: World) -> None:
    with pytest.raises(TopicExists):
        world.owner.create_topic("t")


@pytest.mark.parametrize("partitions", [0, -1, 100_001])
def test_the_number_of_partitions_has_bounds(world: World, partitions: int) -> None:
    with pytest.raises(InvalidConfig):
        world.owner.create_topic("n", partitions)


def test_unknown_topics_and_partitions_are_named(world: World) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'nope'; check the spelling"):
        world.owner.topic("nope")
    with pytest.raises(UnknownPartition, match="partitions 0 to 1, got 2"):
        world.owner.offsets([TopicPartition("t", 2)])


def test_settings_change_at_run_time_and_can_be_reset(world: World) -> None:
    world.owner.alter_topic("t", config={"retention.ms": "7", "cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord, match="needs a key"):
        Client(world).append(b"a", key=None)
    info = world.owner.alter_topic("t", config={"cleanup.policy": None})
    assert info.config == {"retention.ms": "7"}
    Client(world).append(b"a", key=None)
    with pytest.raises(InvalidConfig):
        world.owner.alter_topic("t", config={"retention.ms": "soon"})
    assert world.owner.topic("t").config == {"retention.ms": "7"}


def test_partitions_can_be_added_but_not_removed(world: World) -> None:
    world.owner.alter_topic("t", partitions=4)
    Client(world).append(b"a", partition=3)
    world.crash()
    assert world.values(partition=3) == [b"a"]
    with pytest.raises(InvalidConfig, match="cannot shrink"):
        world.owner.alter_topic("t", partitions=1)


def test_the_log_keeps_its_own_topics_to_itself(world: World) -> None:
    for topic in ("__consumer_offsets", "__transaction_state"):
        with pytest.raises(InvalidTopic):
            Client(world).append(b"a", topic=topic)
        with pytest.raises(InvalidTopic):
            world.owner.delete_topic(topic)


def test_a_deleted_topics_folder_is_removed_even_if_a_crash_interrupted_the_deletion(
    world: World,
) -> None:
    Client(world).append(b"a")
    topic_id = world.owner.topic("t").topic_id
    leftover = f"topics/{topic_id}/0/left"
    world.owner.delete_topic("t")
    world.storage.create(leftover)
    world.crash()
    assert topic_id not in world.storage.list_dir("topics")


class TestTypedTopics:
    """Values are Arrow structs of the topic's schema, which may gain nullable fields."""

    def append(self, world: World, rows: list[dict[str, object] | None], schema_id: int) -> None:
        schema = self.versions[schema_id - 1]
        client = Client(world)
        world.owner.append(
            [Append("f", 0, typed(rows, schema), client.identity, 0, schema_id=schema_id)]
        )

    versions = (FLIGHT, FLIGHT.append(pa.field("seats", pa.int32())))

    def test_rows_are_read_as_they_were_written(self, world: World) -> None:
        world.owner.create_topic("f", schema=FLIGHT)
        rows: list[dict[str, object] | None] = [
            {"carrier": "AA", "delay": 1.5},
            {"carrier": None, "delay": None},
            None,
        ]
        self.append(world, rows, 1)
        assert world.values("f") == rows  # type: ignore[comparison-overlap]

    def test_a_new_schema_version_adds_nullable_fields_that_are_null_in_old_rows(
        self, world: World
    ) -> None:
        world.owner.create_topic("f", schema=FLIGHT)
        self.append(world, [{"carrier": "AA", "delay": 1.0}, None] * 20, 1)
        assert world.owner.alter_topic("f", schema=self.versions[1]).schema_id == 2
        self.append(world, [{"carrier": "BB", "delay": 2.0, "seats": 9}], 2)
        world.crash()
        expected = [{"carrier": "AA", "delay": 1.0, "seats": None}, None] * 20
        expected.append({"carrier": "BB", "delay": 2.0, "seats": 9})
        assert world.values("f") == expected  # type: ignore[comparison-overlap]
        self.append(world, [{"carrier": "CC", "delay": 3.0}], 1)
        assert world.values("f")[-1] == {"carrier": "CC", "delay": 3.0, "seats": None}  # type: ignore[comparison-overlap]

    @pytest.mark.parametrize(
        "schema",
        [
            pa.schema([FLIGHT.field(0)]),
            pa.schema([FLIGHT.field(1), FLIGHT.field(0)]),
            pa.schema([FLIGHT.field(0), pa.field("delay", pa.int64())]),
            FLIGHT.append(pa.field("must", pa.int64(), nullable=False)),
        ],
        ids=["fewer", "order", "type", "not-null"],
    )
    def test_other_changes_are_refused(self, world: World, schema: pa.Schema) -> None:
        world.owner.create_topic("f", schema=FLIGHT)
        with pytest.raises(SchemaMismatch):
            world.owner.alter_topic("f", schema=schema)
        assert world.owner.topic("f").schema_id == 1

    def test_values_of_another_type_are_refused(self, world: World) -> None:
        world.owner.create_topic("f", schema=FLIGHT)
        with pytest.raises(SchemaMismatch, match="schema ids"):
            Client(world).append(b"bytes", topic="f")
        with pytest.raises(SchemaMismatch):
            world.owner.alter_topic("t", schema=FLIGHT)


class TestEdges:
    """Unusual records are stored as they are, or clearly refused."""

    def test_empty_values_tombstones_and_any_bytes_as_key(self, world: World) -> None:
        client = Client(world)
        client.append(b"", None, b"\x00", key=b"\xff\xfe")
        client.append(b"x", key=b"")
        assert world.values() == [b"", None, b"\x00", b"x"]
        world.crash()
        assert world.values() == [b"", None, b"\x00", b"x"]

    def test_a_value_of_10_megabytes_is_stored(self, world: World) -> None:
        value = bytes(range(256)) * 40_960
        Client(world).append(value)
        world.crash()
        assert world.values() == [value]

    def test_a_batch_over_the_limit_is_refused_whole(self, world: World) -> None:
        world.owner.alter_topic("t", config={"max.message.bytes": "1000"})
        client = Client(world)
        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes = 1000"):
            client.append(b"x" * 1001)
        client.append(b"x" * 900, sequence=0)
        assert len(world.values()) == 1

    @pytest.mark.parametrize("size", [1, 31, 32, 33, 100_000])
    def test_batches_of_any_size_are_stored(self, world: World, size: int) -> None:
        values = [b"%d" % n for n in range(size)]
        Client(world).append(*values)
        assert world.values() == values

    def test_times_may_decrease_but_not_precede_1970(self, world: World) -> None:
        client = Client(world)
        client.append(b"a", b"b", times=[START_MS, START_MS - 10])
        with pytest.raises(InvalidRecord, match="1970"):
            client.append(b"c", times=-1)
        assert world.values() == [b"a", b"b"]

    def test_times_too_far_from_the_clock_are_refused_if_the_topic_limits_them(
        self, world: World
    ) -> None:
        world.owner.alter_topic("t", config={"message.timestamp.after.max.ms": "1000"})
        with pytest.raises(InvalidRecord, match=r"after\.max\.ms = 1000"):
            Client(world).append(b"a", times=START_MS + 1001)

    def test_log_append_time_replaces_the_producers(self, world: World) -> None:
        world.owner.alter_topic("t", config={"message.timestamp.type": "LogAppendTime"})
        Client(world).append(b"a", times=5)
        batch = world.owner.fetch({TopicPartition("t", 0): 0})[TopicPartition("t", 0)].batches[0]
        assert batch.columns.column("timestamp").to_pylist() == [START_MS]

    def test_a_topic_may_have_a_thousand_partitions(self) -> None:
        world = World()
        world.owner.create_topic("many", 1000)
        client = Client(world)
        for partition in range(0, 1000, 50):
            client.append(b"%d" % partition, topic="many", partition=partition)
        world.crash()
        assert all(world.values("many", p) == [b"%d" % p] for p in range(0, 1000, 50))

    @pytest.mark.parametrize(
        "wrong",
        [
            columns([b"a"]).select(["timestamp", "key"]),
            columns([b"a"]).rename_columns(["timestamp", "key", "val"]),
            columns([b"a"]).slice(0, 0),
            columns([b"a"]).set_column(0, "timestamp", pa.array([None], pa.int64())),
            columns([b"a"]).set_column(1, "key", pa.array(["text"])),
        ],
        ids=["no-value", "other-name", "empty", "null-time", "text-key"],
    )
    def test_other_columns_are_refused(self, world: World, wrong: pa.RecordBatch) -> None:
        client = Client(world)
        with pytest.raises(InvalidRecord):
            world.owner.append([Append("t", 0, wrong, client.identity, 0)])
        assert world.values() == []
