"""`strandline groups`."""

from __future__ import annotations

from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.cli.conftest import Command


def half_read(log: Log) -> None:
    log.create_topic("orders", 2)
    for partition in (0, 1):
        log.append("orders", [{"value": b"x"}] * 10, partition=partition)
    log.broker.commit_offsets("shop", {TopicPartition("orders", 0): CommittedOffset(7)})


def test_groups_are_listed_with_their_lag(log: Log, strandline: Command) -> None:
    half_read(log)
    assert strandline("groups", "list", "--json").json == [
        {"group": "shop", "topics": 1, "partitions": 2, "lag": 13}
    ]
    assert "shop" in strandline("groups", "list").out


def test_offsets_of_a_group_are_shown(log: Log, strandline: Command) -> None:
    half_read(log)
    assert strandline("groups", "offsets", "shop", "--json").json == [
        {"topic": "orders", "partition": 0, "offset": 7, "end": 10, "lag": 3},
        {"topic": "orders", "partition": 1, "offset": None, "end": 10, "lag": 10},
    ]
    assert "–" in strandline("groups", "offsets", "shop").out


def test_the_lag_of_a_group_is_shown_by_topic(log: Log, strandline: Command) -> None:
    half_read(log)
    expected = {"group": "shop", "lag": 13, "topics": {"orders": 13}}
    assert strandline("groups", "lag", "shop", "--json").json == expected
    assert "13" in strandline("groups", "lag", "shop").out


def test_the_error_about_an_unknown_group_names_the_known_ones(
    log: Log, strandline: Command
) -> None:
    half_read(log)
    outcome = strandline("groups", "offsets", "shpo")
    assert outcome.code == 1
    assert "groups: shop" in outcome.err


def test_a_log_without_groups_shows_none(log: Log, strandline: Command) -> None:
    assert strandline("groups", "list", "--json").json == []
    assert "no group" in strandline("groups", "list").err


def test_members_of_a_group_are_shown(log: Log, strandline: Command) -> None:
    log.create_topic("orders", 2)
    with log.consumer(group="shop", instance="till") as consumer:
        consumer.subscribe("orders")
        consumer.poll(1.0)
        [member] = strandline("groups", "members", "shop", "--json").json
        assert member["holds"] == ["orders-0", "orders-1"]
        assert member["static"] == "till"
        assert "orders-1" in strandline("groups", "members", "shop").out
        assert "shop" in strandline("groups", "list").out
    assert "no members" in strandline("groups", "members", "nobody").err
