"""The largest value of every number setting works: no arithmetic overflows."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

import strandline as sl
from strandline.changelog.client.consumer import Consumer
from strandline.changelog.client.producer import Producer
from strandline.changelog.config import TopicConfig, topic_settings
from strandline.changelog.embedded import document
from strandline.changelog.embedded.topic import KIND, TopicMeta
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.layout import CATALOG, LOG_CONFIG
from strandline.changelog.log_config import CleanerConfig, LogConfig
from strandline.changelog.settings import LONG_MAX, LONGEST_MS, SettingRange
from strandline.framework.options import Options
from strandline.framework.testing import TestDriver
from strandline.statestore.spec import StoreLimits, StoreSpec
from tests.log.kit import Client, World

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "4096"}


def ranges(config: type, prefix: str = "") -> list[Any]:
    """Return the number settings with their ranges."""
    found = []
    for attribute, hint in get_type_hints(config, include_extras=True).items():
        for limits in getattr(hint, "__metadata__", ()):
            name = prefix + attribute.replace("_", ".")
            found.append(pytest.param(name, limits, id=name))
    return found


TOPIC = ranges(TopicConfig)
CLEANER = ranges(CleanerConfig, "log.cleaner.")


def story(world: World) -> None:
    """Write values and tombstones, and apply cleaning and retention, across a reopening."""
    client = Client(world)
    for number in range(6):
        client.append(b"v%d" % number * 100, topic="c", key=b"a")
        client.append(None, topic="c", key=b"b")
        world.owner.clean(["c"])
        assert [one.reason for one in world.owner.cleaning()] == [""] * len(world.owner.cleaning())
        world.clock.advance(60_000)
        world.owner.tick()
    expected = world.values("c")
    world.reopen()
    world.owner.tick()
    assert world.values("c") == expected
    assert b"v5" * 100 in expected


@pytest.mark.parametrize(("name", "limits"), TOPIC)
def test_a_topic_setting_works_at_its_largest_value(name: str, limits: SettingRange) -> None:
    world = World()
    largest = int(limits.high) if name != "min.cleanable.dirty.ratio" else limits.high
    world.owner.create_topic("c", config={**COMPACTED, name: str(largest)})
    if name in ("segment.bytes", "min.compaction.lag.ms"):  # nothing can be cleaned
        Client(world).append(b"v", topic="c")
        world.owner.clean(["c"])
        world.owner.tick()
        assert world.values("c") == [b"v"]
    else:
        story(world)


@pytest.mark.parametrize(("name", "limits"), CLEANER)
def test_a_cleaner_setting_works_at_its_largest_value(name: str, limits: SettingRange) -> None:
    world = World()
    world.owner.alter_config({name: str(int(limits.high))})
    world.owner.create_topic("c", config=COMPACTED)
    story(world)


@pytest.mark.parametrize(("name", "limits"), TOPIC)
def test_a_topic_setting_above_its_largest_value_is_refused(
    name: str, limits: SettingRange
) -> None:
    world = World()
    larger = str(int(limits.high) + 1)
    with pytest.raises(InvalidConfig, match=f"{name} must be"):
        world.owner.create_topic("c", config={name: larger})
    world.owner.create_topic("c")
    with pytest.raises(InvalidConfig, match=f"{name} must be"):
        world.owner.alter_topic("c", {name: larger})


@pytest.mark.parametrize(("name", "limits"), CLEANER)
def test_a_cleaner_setting_above_its_largest_value_is_refused(
    name: str, limits: SettingRange
) -> None:
    with pytest.raises(InvalidConfig, match=f"{name} must be"):
        LogConfig().altered({name: str(int(limits.high) + 1)})


def test_a_larger_topic_setting_stored_by_an_earlier_version_counts_as_the_largest() -> None:
    world = World()
    world.owner.create_topic("c", config=COMPACTED)
    world.owner.close()
    metas = document.load(world.storage, CATALOG, KIND, list[TopicMeta])
    for meta in metas:
        if meta.name == "c":
            names = ("delete.retention.ms", "file.delete.delay.ms")
            meta.config.update(dict.fromkeys(names, str(LONG_MAX)))
    document.save(world.storage, CATALOG, KIND, metas)
    world.open()
    config = world.owner.topic("c").effective
    assert (config.delete_retention_ms, config.file_delete_delay_ms) == (LONGEST_MS, LONGEST_MS)
    story(world)
    world.owner.alter_topic("c", {"retention.ms": "1000"})
    with pytest.raises(InvalidConfig, match="delete.retention.ms must be"):
        world.owner.alter_topic("c", {"delete.retention.ms": str(LONG_MAX)})


def test_a_larger_log_setting_stored_by_an_earlier_version_counts_as_the_largest() -> None:
    world = World()
    world.owner.alter_config({"log.cleaner.backoff.ms": "5"})
    world.owner.close()
    names = ("log.cleaner.backoff.ms", "log.cleaner.delete.retention.ms")
    document.save(world.storage, LOG_CONFIG, "config", dict.fromkeys(names, str(LONG_MAX)))
    world.open()
    world.owner.create_topic("c", config=COMPACTED)
    assert world.owner.topic("c").effective.delete_retention_ms == LONGEST_MS
    story(world)
    world.owner.alter_config({"log.cleaner.threads": "2"})


def test_every_setting_has_a_largest_value() -> None:
    assert {one.values[0] for one in TOPIC} | {
        "cleanup.policy",
        "message.timestamp.type",
        "compression.type",
    } == set(topic_settings.names)
    for one in (*TOPIC, *CLEANER):
        assert one.values[1].high <= LONG_MAX


# Arguments ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [one.name for one in dataclasses.fields(Options) if "int" in str(one.type)]
)
def test_a_number_option_of_an_app_has_a_largest_value(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        Options(**{name: 2**63})  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=name):
        Options(**{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [one.name for one in dataclasses.fields(StoreLimits)])
def test_a_limit_of_a_store_has_a_largest_value(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        StoreLimits(**{name: 2**63})
    with pytest.raises(InvalidConfig, match=name):
        StoreLimits(**{name: -1})


def test_a_time_to_live_has_a_largest_value_that_works() -> None:
    with pytest.raises(InvalidConfig, match="ttl_ms must be"):
        StoreSpec("s", ttl_ms=LONGEST_MS + 1)
    app = sl.App("app")
    words = app.topic("words", value=int)
    seen = app.store("seen", value=int, default=0, ttl_ms=LONGEST_MS)

    @app.task(words, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen[record.key] += 1

    with TestDriver(app) as driver:
        driver.run([("a", 1), ("a", 1)])
        driver.crash().run([("a", 1)])
        assert driver.store(seen) == {"a": 3}


@pytest.mark.parametrize(
    "name", ["linger_ms", "batch_bytes", "buffer_bytes", "delivery_timeout_ms"]
)
def test_a_number_option_of_a_producer_has_a_largest_value(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        Producer(World().owner, **{name: 2**63})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["max_bytes", "max_partition_bytes", "max_poll_interval_ms"])
def test_a_number_option_of_a_consumer_has_a_largest_value(name: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        Consumer(World().owner, **{name: 2**63})  # type: ignore[arg-type]
