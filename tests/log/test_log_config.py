"""Settings of a log as a whole, and of a topic, changed while they are in use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import pytest

from strandline.changelog.client.accumulator import RecordMetadata
from strandline.changelog.client.producer import Producer
from strandline.changelog.embedded.maintenance import RETENTION_CHECK_MS
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import DiskFull, InvalidConfig, InvalidRecord, RecordTooLarge
from strandline.changelog.layout import FOLDER_META, LOG_CONFIG
from strandline.changelog.log import Log
from strandline.changelog.log_config import NAMES, LogConfig
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.changelog.storage import Storage
from tests.crash.twin import Kind
from tests.log.kit import START_MS, Client, World
from tests.log.power import PowerWorld, failing

T0 = TopicPartition("t", 0)
SYSTEM = ("__consumer_offsets", "__transaction_state")


def effective(world: World, topic: str = "t") -> dict[str, str]:
    return world.owner.topic(topic).effective.as_strings()


def sources(world: World, topic: str = "t") -> dict[str, str]:
    """Return the sources of a topic's settings that are not built-in defaults."""
    shown = world.owner.topic(topic).settings()
    return {setting.name: setting.source for setting in shown if setting.source != "default"}


def document_of(world: World) -> bytes | None:
    storage: Storage = world.storage
    if not storage.exists(LOG_CONFIG):
        return None
    file = storage.open(LOG_CONFIG)
    return bytes(file.read(0, file.size()))


class TestValues:
    """Names and meanings are those of Kafka's broker settings."""

    def test_without_settings_there_are_kafkas_defaults(self) -> None:
        cleaner = LogConfig().cleaner
        assert (cleaner.enable, cleaner.threads, cleaner.backoff_ms) == (True, 1, 15_000)
        assert cleaner.dedupe_buffer_size == 128 << 20
        assert cleaner.io_max_bytes_per_second == 2**63 - 1
        assert LogConfig().topic_defaults == {}

    @pytest.mark.parametrize(
        ("name", "value", "topics"),
        [
            ("log.cleanup.policy", "compact", "cleanup.policy"),
            ("log.retention.ms", "-1", "retention.ms"),
            ("log.retention.bytes", "7", "retention.bytes"),
            ("log.segment.bytes", "4096", "segment.bytes"),
            ("log.roll.ms", "7", "segment.ms"),
            ("log.segment.delete.delay.ms", "7", "file.delete.delay.ms"),
            ("log.cleaner.min.cleanable.ratio", "0.25", "min.cleanable.dirty.ratio"),
            ("log.cleaner.min.compaction.lag.ms", "7", "min.compaction.lag.ms"),
            ("log.cleaner.max.compaction.lag.ms", "7", "max.compaction.lag.ms"),
            ("log.cleaner.delete.retention.ms", "7", "delete.retention.ms"),
            ("message.max.bytes", "7", "max.message.bytes"),
            ("log.message.timestamp.type", "LogAppendTime", "message.timestamp.type"),
            ("log.message.timestamp.before.max.ms", "7", "message.timestamp.before.max.ms"),
            ("log.message.timestamp.after.max.ms", "7", "message.timestamp.after.max.ms"),
            ("compression.type", "zstd", "compression.type"),
            ("log.index.interval.bytes", "7", "index.interval.bytes"),
        ],
    )
    def test_a_default_for_topics_has_the_brokers_name(
        self, name: str, value: str, topics: str
    ) -> None:
        config = LogConfig().altered({name: value})
        assert config.topic({}).as_strings()[topics] == value
        assert config.topic_defaults == {topics: value}

    @pytest.mark.parametrize(
        ("name", "value", "own", "ms"),
        [
            ("log.retention.hours", "168", "log.retention.ms", "604800000"),
            ("log.retention.minutes", "3", "log.retention.ms", "180000"),
            ("log.retention.hours", "-1", "log.retention.ms", "-1"),
            ("log.roll.hours", "1", "log.roll.ms", "3600000"),
        ],
    )
    def test_other_units_are_accepted_and_stored_in_ms(
        self, name: str, value: str, own: str, ms: str
    ) -> None:
        config = LogConfig({own: "5"}).altered({name: value})
        assert config.given == {own: ms}
        assert config.altered({name: None}).given == {}

    def test_every_setting_is_shown_with_its_source(self) -> None:
        shown = LogConfig({"log.cleaner.enable": "FALSE"}).settings()
        assert [setting.name for setting in shown] == list(NAMES)
        assert [s for s in shown if s.source == "log"] == [("log.cleaner.enable", "false", "log")]
        assert (
            LogConfig({s.name: s.value for s in shown}).cleaner
            == LogConfig({"log.cleaner.enable": "false"}).cleaner
        )

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"retention.ms": "5"}, "did you mean 'log.retention.ms'"),
            ({"log.cleaner.treads": "5"}, "did you mean 'log.cleaner.threads'"),
            ({"frobnicate": "5"}, "there are 'compression.type', "),
            ({"log.retention.ms": "-2"}, r"log.retention.ms must be .* from -1"),
            ({"log.retention.hours": "soon"}, "log.retention.hours must be a whole number"),
            ({"log.retention.hours": str(2**62)}, "log.retention.ms must be a whole number"),
            ({"log.roll.hours": "0"}, "log.roll.hours must be a whole number from 1"),
            ({"log.cleanup.policy": "compacted"}, "did you mean 'compact'"),
            ({"log.cleaner.threads": "0"}, "from 1 to 64, got 0"),
            ({"log.cleaner.enable": "no"}, "log.cleaner.enable must be 'true' or 'false'"),
            ({"log.cleaner.threads": "2", "log.cleaner.dedupe.buffer.size": "4096"}, "2 threads"),
            ({"log.retention.ms": "5", "log.retention.hours": "5"}, "are one setting"),
            ({"log.retention.ms": 5}, "must be a string: write '5'"),
            (
                {
                    "log.cleaner.min.compaction.lag.ms": "9",
                    "log.cleaner.max.compaction.lag.ms": "8",
                },
                "must not exceed",
            ),
        ],
    )
    def test_a_wrong_setting_is_named_with_the_allowed_values(
        self, changes: Mapping[str, str], problem: str
    ) -> None:
        with pytest.raises(InvalidConfig, match=problem):
            LogConfig().altered(changes)


class TestOfALog:
    """Settings are in the log's folder, and apply to its topics at once."""

    def test_settings_survive_crash_and_reopening(self, world: World) -> None:
        given = {"log.retention.ms": "5", "log.cleaner.threads": "3"}
        assert world.owner.alter_config(given) == given
        world.crash()
        assert world.owner.describe_config() == given
        world.reopen()
        assert world.owner.describe_config() == given
        assert effective(world)["retention.ms"] == "5"

    def test_a_folder_without_settings_opens_with_the_defaults(self, world: World) -> None:
        world.crash()
        assert document_of(world) is None
        assert world.owner.describe_config() == {}
        assert world.owner.topic("t").defaults == {}

    def test_a_topics_setting_precedes_the_logs_and_that_the_built_in_default(
        self, world: World
    ) -> None:
        world.owner.alter_topic("t", config={"retention.ms": "7"})
        world.owner.alter_config({"log.retention.ms": "5", "log.segment.bytes": "5000"})
        assert sources(world) == {"retention.ms": "topic", "segment.bytes": "log"}
        assert effective(world)["retention.ms"] == "7"
        world.owner.alter_topic("t", config={"retention.ms": None})
        assert effective(world)["retention.ms"] == "5"
        world.owner.alter_config({"log.retention.ms": None})
        assert effective(world)["retention.ms"] == str(7 * 24 * 60 * 60 * 1000)
        assert sources(world) == {"segment.bytes": "log"}
        assert world.owner.topic("t").config == {}

    def test_a_topic_created_later_has_the_logs_settings_too(self, world: World) -> None:
        world.owner.alter_config({"log.cleanup.policy": "compact"})
        world.owner.create_topic("u")
        with pytest.raises(InvalidRecord, match="needs a key"):
            Client(world).append(b"a", topic="u", key=None)
        world.owner.create_topic("v", config={"cleanup.policy": "delete"})
        Client(world).append(b"a", topic="v", key=None)

    def test_the_logs_own_topics_stay_compacted(self, world: World) -> None:
        world.owner.alter_config({"log.cleanup.policy": "delete", "log.retention.ms": "1"})
        for topic in SYSTEM:
            assert effective(world, topic)["cleanup.policy"] == "compact"
            for policy in ("delete", "compact,delete", None):
                with pytest.raises(InvalidConfig, match="always compacted"):
                    world.owner.alter_topic(topic, config={"cleanup.policy": policy})
            world.owner.alter_topic(topic, config={"segment.bytes": "65536"})
        world.crash()
        assert {effective(world, topic)["cleanup.policy"] for topic in SYSTEM} == {"compact"}

    @pytest.mark.parametrize(
        "changes",
        [
            {"log.retention.ms": "8", "log.segment.bytes": "1"},
            {"log.retention.ms": "8", "log.nonsense": "1"},
            {"log.retention.ms": "8", "log.cleaner.max.compaction.lag.ms": "9"},
        ],
    )
    def test_a_refused_change_changes_nothing(self, world: World, changes: dict[str, str]) -> None:
        world.owner.alter_config({"log.retention.ms": "5"})
        world.owner.alter_topic("t", config={"min.compaction.lag.ms": "10"})
        before = document_of(world), effective(world), world.owner.describe_config()
        with pytest.raises(InvalidConfig):
            world.owner.alter_config(changes)
        assert (document_of(world), effective(world), world.owner.describe_config()) == before

    def test_a_topic_that_would_contradict_the_log_is_named(self, world: World) -> None:
        world.owner.alter_topic("t", config={"min.compaction.lag.ms": "10"})
        with pytest.raises(InvalidConfig, match=r"topic 't': min\.compaction\.lag\.ms \(10\)"):
            world.owner.alter_config({"log.cleaner.max.compaction.lag.ms": "9"})
        world.owner.alter_config({"log.cleaner.max.compaction.lag.ms": "20"})
        for refused in ("alter", "create"):
            with pytest.raises(InvalidConfig, match="must not exceed"):
                if refused == "alter":
                    world.owner.alter_topic("t", config={"min.compaction.lag.ms": "21"})
                else:
                    world.owner.create_topic("u", config={"min.compaction.lag.ms": "21"})
        assert effective(world)["min.compaction.lag.ms"] == "10"

    @pytest.mark.parametrize(
        ("file", "first"), [(LOG_CONFIG, True), (FOLDER_META, True), (LOG_CONFIG, False)]
    )
    @pytest.mark.parametrize("kind", ["create", "append", "fsync", "rename"])
    def test_a_change_on_a_full_disk_has_no_effect(
        self, kind: Kind, file: str, first: bool
    ) -> None:
        world = PowerWorld()
        world.owner.create_topic("t")
        before: dict[str, str] = {}
        if not first:
            before = world.owner.alter_config({"log.retention.ms": "7"})
        world.storage.hook = failing(kind, file, error=DiskFull("full"), times=1)
        with pytest.raises(DiskFull):
            world.owner.alter_config({"log.retention.ms": "5"})
        assert list(world.owner.topic("t").defaults.values()) == list(before.values())
        world.crash()
        assert world.owner.describe_config() == before
        world.owner.alter_config({"log.retention.ms": "5"})
        world.power_cut()
        assert effective(world)["retention.ms"] == "5"


class TestALiveTopic:
    """A change applies from the next append, or from the next run of retention."""

    @pytest.mark.parametrize("whose", ["topic", "log"])
    def test_the_segment_size_applies_from_the_next_append(self, world: World, whose: str) -> None:
        client = Client(world)
        for _ in range(20):
            client.append(b"x" * 500)
        assert len(world.owner._log.partition(T0).segments) == 1
        if whose == "topic":
            world.owner.alter_topic("t", config={"segment.bytes": "4096"})
        else:
            world.owner.alter_config({"log.segment.bytes": "4096"})
        client.append(b"x" * 500)
        assert len(world.owner._log.partition(T0).segments) == 2

    @pytest.mark.parametrize("whose", ["topic", "log"])
    @pytest.mark.parametrize(
        ("by", "kept"), [("retention.ms", "1000"), ("retention.bytes", "5000")]
    )
    def test_retention_applies_from_its_next_run(
        self, world: World, whose: str, by: str, kept: str
    ) -> None:
        client = Client(world)
        world.owner.alter_topic("t", config={"segment.bytes": "4096"})
        for _ in range(20):
            client.append(b"x" * 500, times=START_MS)
        world.clock.advance(2000)
        world.owner.tick()
        assert world.owner.offsets([T0])[T0].log_start == 0
        if whose == "topic":
            world.owner.alter_topic("t", config={by: kept})
        else:
            world.owner.alter_config({f"log.{by}": kept})
        world.clock.advance(RETENTION_CHECK_MS)
        world.owner.tick()
        assert world.owner.offsets([T0])[T0].log_start > 0

    def test_longer_retention_keeps_records_that_are_not_deleted_yet(self, world: World) -> None:
        world.owner.alter_config({"log.retention.ms": "20000"})
        Client(world).append(b"a", times=START_MS)
        world.clock.advance(15_000)
        world.owner.tick()
        world.owner.alter_config({"log.retention.ms": "-1"})
        world.clock.advance(1_000_000)
        world.owner.tick()
        assert world.values() == [b"a"]

    def test_old_segments_are_deleted_after_a_change_from_compact_to_delete(
        self, world: World
    ) -> None:
        world.owner.alter_topic(
            "t", config={"cleanup.policy": "compact", "segment.bytes": "4096", "retention.ms": "5"}
        )
        client = Client(world)
        for _ in range(20):
            client.append(b"x" * 500, times=START_MS)
        world.clock.advance(RETENTION_CHECK_MS)
        world.owner.tick()
        assert world.owner.offsets([T0])[T0].log_start == 0
        world.owner.alter_topic("t", config={"cleanup.policy": "delete"})
        world.clock.advance(RETENTION_CHECK_MS)
        world.owner.tick()
        assert world.values() == []

    def test_a_producer_notices_a_change_of_the_policy_either_way(self, world: World) -> None:
        with Producer(world.owner, clock=world.clock) as producer:
            producer.send("t", b"a", partition=0)
            producer.flush()
            world.owner.alter_topic("t", config={"cleanup.policy": "compact"})
            stale = producer.send("t", b"b", partition=0)
            producer.flush()
            with pytest.raises(InvalidRecord, match="needs a key"):
                stale.result()
            # the producer has noticed the change
            with pytest.raises(InvalidRecord, match="needs a key"):
                producer.send("t", b"c", partition=0)
            producer.send("t", b"d", key="k", partition=0)
            world.owner.alter_topic("t", config={"cleanup.policy": "delete"})
            producer.send("t", b"e", partition=0)
        assert world.values() == [b"a", b"d", b"e"]

    def test_a_producer_notices_that_larger_records_are_allowed(self, world: World) -> None:
        world.owner.alter_config({"message.max.bytes": "2000"})
        with Producer(world.owner, clock=world.clock) as producer:
            with pytest.raises(RecordTooLarge, match="over max.message.bytes = 2000"):
                producer.send("t", b"x" * 3000, partition=0)
            world.owner.alter_config({"message.max.bytes": "4000"})
            producer.send("t", b"x" * 3000, partition=0)
        assert world.values() == [b"x" * 3000]


def test_the_policy_can_change_back_and_forth_while_a_producer_works(
    eventually: Callable[..., None],
) -> None:
    """Keyed records all arrive, in order; a keyless one arrives exactly if it was accepted."""
    rounds = 10
    owner = Owner(MemoryStorage(), background=True)
    owner.alter_config({"log.cleaner.enable": "false", "log.retention.ms": "-1"})
    owner.create_topic("t", config={"segment.bytes": "4096"})
    keyed: list[Future[RecordMetadata]] = []
    keyless: list[tuple[bytes, Future[RecordMetadata]]] = []
    stop = threading.Event()

    def produce() -> None:
        with Producer(owner, linger_ms=0) as producer:
            while not stop.is_set():
                number = len(keyed)
                keyed.append(producer.send("t", b"%d" % number, key="k"))
                value = b"free %d" % number
                with contextlib.suppress(InvalidRecord):
                    keyless.append((value, producer.send("t", value)))
                producer.flush()

    producing = threading.Thread(target=produce)
    producing.start()
    for number in range(rounds):
        owner.alter_topic("t", config={"cleanup.policy": ("compact", "delete")[number % 2]})
        wanted = len(keyed) + 3  # at least two of them begin after the change
        eventually(lambda: len(keyed) >= wanted)  # noqa: B023 - called before it changes
    stop.set()
    producing.join(30)
    assert not producing.is_alive()
    # A refused keyless record fails the keyed ones of its batch with it.
    taken = [b"%d" % n for n, future in enumerate(keyed) if future.exception() is None]
    taken_keyless = {value for value, future in keyless if future.exception() is None}
    errors = {type(f.exception()) for f in [*keyed, *(f for _, f in keyless)] if f.exception()}
    assert errors <= {InvalidRecord}
    assert any(future.exception() for _, future in keyless)
    assert taken_keyless
    values = Log(owner).read("t")["value"].to_pylist()
    assert [value for value in values if not value.startswith(b"free")] == taken
    assert {value for value in values if value.startswith(b"free")} == taken_keyless
    owner.close()
