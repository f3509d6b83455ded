"""The changelog of a store with a time to live: compacted, and old segments are deleted."""

from __future__ import annotations

from typing import Any

import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.declarations import TTL_MARGIN_MS, changelog_config
from strandline.statestore import StoreSpec, open_store
from strandline.statestore.keys import key_codec
from tests.state.kit import Changelog

HOUR_MS = 60 * 60 * 1000
CHANGELOG = "app-seen-changelog"
TP = TopicPartition(CHANGELOG, 0)


@pytest.fixture
def owner() -> Owner:
    return Owner(MemoryStorage(), clock=ManualClock(1_000_000), background=False)


def declared(owner: Owner, **settings: Any) -> dict[str, str]:
    """Return the changelog's settings after an app with such a store was started."""
    app = sl.App("app", log="unused")
    words = app.topic("words", value=str)
    seen = app.store("seen", key=str, value=int, **settings)

    @app.task(words, stores=[seen])
    def note(record: sl.Record[str, str]) -> None:
        seen[record.value] = 1

    app.declared.prepare(owner)
    return dict(owner.topic(CHANGELOG).config)


def test_the_changelog_deletes_values_that_expired_long_ago(owner: Owner) -> None:
    assert declared(owner, ttl_ms=HOUR_MS) == {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(HOUR_MS + TTL_MARGIN_MS),
        "segment.ms": str(HOUR_MS // 4),
    }


def test_a_changelog_without_a_time_to_live_is_only_compacted(owner: Owner) -> None:
    assert declared(owner) == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("before", "after", "policy", "retention"),
    [
        (HOUR_MS, None, "compact", None),
        (HOUR_MS, 5 * HOUR_MS, "compact,delete", 5 * HOUR_MS + TTL_MARGIN_MS),
        (5 * HOUR_MS, HOUR_MS, "compact,delete", 5 * HOUR_MS + TTL_MARGIN_MS),
        (None, HOUR_MS, "compact", None),
    ],
)
def test_a_store_with_a_new_time_to_live_finds_all_values_it_keeps(
    owner: Owner, before: int | None, after: int | None, policy: str, retention: int | None
) -> None:
    declared(owner, ttl_ms=before)
    config = declared(owner, ttl_ms=after)
    assert config["cleanup.policy"] == policy
    assert config.get("retention.ms") == (None if retention is None else str(retention))


def test_a_store_restored_after_old_segments_were_deleted_has_all_values_not_expired() -> None:
    spec: StoreSpec[str, int] = StoreSpec(
        "seen", key=str, value=int, ttl_ms=HOUR_MS, engine="memory"
    )
    changelog = changelog_of(spec)
    store = changelog.open(spec)
    for hour in range(40):
        store[f"hour {hour}"] = hour
        changelog.commit(store)
        changelog.clock.advance(HOUR_MS)
        changelog.owner.tick()
    changelog.clock.advance(-HOUR_MS // 2)
    log = changelog.owner.offsets([changelog.partition])[changelog.partition]
    assert log.log_start > 0, "retention has taken nothing"
    again = open_store(spec, None, clock=changelog.clock, lock_timeout=0)
    changelog.restore(again)
    assert dict(again.all()) == dict(store.all()) == {"hour 39": 39}


@pytest.mark.long
def test_the_changelog_keeps_the_last_figures_of_recent_windows() -> None:
    """A window is a key and a start. Cleaning keeps one record of each; retention deletes old
    ones."""
    days, pages = 10, ("home", "shop")
    spec: StoreSpec[tuple[str, int], int] = StoreSpec(
        "visits", key=tuple[str, int], value=int, ttl_ms=48 * HOUR_MS, engine="memory"
    )
    changelog = changelog_of(spec)
    store, sizes = changelog.open(spec), []
    for hour in range(24 * days):
        for visits in range(1, 7):
            for page in pages:
                store[page, hour] = visits
            changelog.commit(store)
            changelog.clock.advance(HOUR_MS // 6)
            changelog.owner.tick()
        sizes.append(len(keys_in(changelog)))
    kept = keys_in(changelog)
    young = {(page, hour) for page in pages for hour in range(24 * (days - 2), 24 * days)}
    assert young <= set(kept), "a young window is gone"
    assert min(hour for _, hour in kept) > 24 * (days - 4), "retention has left old ones"
    assert max(sizes) < 500, "cleaning has left repetitions"
    again = open_store(spec, None, clock=changelog.clock, lock_timeout=0)
    changelog.restore(again)
    assert dict(again.all()) == dict(store.all()) == dict.fromkeys(sorted(young), 6)


def changelog_of(spec: StoreSpec[Any, Any]) -> Changelog:
    """Return a changelog with the settings that an app gives it."""
    changelog = Changelog()
    changelog.owner.alter_topic(changelog.partition.topic, config=changelog_config(spec))
    return changelog


def keys_in(changelog: Changelog) -> list[tuple[str, int]]:
    """Return the keys of its records, one for each."""
    decode, tp = key_codec(tuple[str, int]).decode, changelog.partition
    log, found = changelog.owner.offsets([tp])[tp], []
    position = log.log_start
    while position < log.last_stable_offset:
        fetched = changelog.owner.fetch({tp: position})[tp]
        for batch in fetched.batches:
            found += [decode(key) for key in batch.columns.column("key").to_pylist()]
        position = fetched.next_offset
    return found
