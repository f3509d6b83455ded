"""Parts of an app that are moved one after another fit together in the target, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.errors import InternalTopicLost
from strandline.changelog.moving import MovedLog
from strandline.changelog.records import CommittedOffset, TopicPartition
from strandline.framework.moving import move, verify_only
from tests.moving.test_unfinished import Shop, here

__all__ = ["here"]

CHANGELOG = "shop-totals-changelog"


def moved(source: Path, target: Path, *topics: str, app: str | None = None) -> set[str]:
    """Move topics or an app, and compare them. Return the topics that were moved."""
    with changelog.open(source) as one, changelog.open(target) as other:
        places = MovedLog(str(source), one.broker), MovedLog(str(target), other.broker)
        report = move(*places, topics=topics, app=app)
        assert verify_only(*places, topics=topics, app=app).topics == report.topics
    return {topic.name for topic in report.topics}


def test_an_app_whose_inputs_alone_are_moved_is_refused(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert moved(here, there, "sales") == {"sales", "shop-declarations"}
    with Shop(there) as shop, pytest.raises(InternalTopicLost, match="not moved"):
        shop.total()
    assert moved(here, there, app="shop") == {"sales", "shop-declarations", CHANGELOG}
    with Shop(there) as shop:
        assert shop.total() == 10


@pytest.mark.parametrize("parts", [(CHANGELOG, "sales"), ("sales", CHANGELOG)])
def test_a_part_that_was_moved_before_is_moved_again_with_the_next_one(
    here: Path, tmp_path: Path, parts: tuple[str, str]
) -> None:
    """The store would lack the records that the app has handled in the source in between."""
    first, second = parts
    there = tmp_path / "there"
    moved(here, there, first)
    with Shop(here) as shop:
        shop.sell(5)
    assert moved(here, there, second) == {"sales", "shop-declarations", CHANGELOG}
    with Shop(there) as shop:
        assert shop.total() == 15
        shop.sell(1)
        assert shop.total() == 16


def test_other_topics_are_moved_alone(here: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    with changelog.open(here) as log:
        log.create_topic("other")
        log.append("other", [{"value": b"1"}])
        log.broker.commit_offsets("reader", {TopicPartition("other", 0): CommittedOffset(1)})
    moved(here, there, CHANGELOG)
    assert moved(here, there, "other") == {"other"}


def test_positions_of_single_tasks_are_translated(tmp_path: Path) -> None:
    here, there, tp = tmp_path / "here", tmp_path / "there", TopicPartition("sales", 0)
    with changelog.open(here) as log:
        log.create_topic("sales")
        log.append("sales", [{"value": b"%d" % n} for n in range(6)])
        log.broker.delete_records(tp, 3)
        log.broker.commit_offsets("shop", {tp: CommittedOffset(4, '{"tasks":{"a":4,"b":5}}')})
    moved(here, there)
    with changelog.open(there) as log:
        found = log.broker.committed("shop")[tp]
    assert (found.offset, found.metadata) == (1, '{"tasks":{"a":1,"b":2}}')
