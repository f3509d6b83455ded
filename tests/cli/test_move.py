"""`strandline move`."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import InternalTopicLost
from strandline.changelog.log import Log
from strandline.changelog.records import CommittedOffset, TopicPartition
from tests.cli.conftest import Command


@pytest.fixture
def shop(log: Log) -> Log:
    """A log with the state of the app `shop`, and of another app."""
    for topic in ("orders", "sums", "shop-totals-changelog", "shopping-list"):
        log.create_topic(topic)
        log.append(topic, [{"key": b"k", "value": b"1"}, {"key": b"k", "value": b"2"}])
    for group, topic in (("shop", "orders"), ("shopping", "shopping-list")):
        log.broker.commit_offsets(group, {TopicPartition(topic, 0): CommittedOffset(1)})
    return log


def topics_in(folder: Path) -> list[str]:
    with changelog.open(folder) as there:
        return [info.name for info in there.topics()]


def test_a_whole_log_is_moved_and_compared(
    shop: Log, strandline: Command, folder: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    outcome = strandline("move", str(folder), str(there))
    assert outcome.code == 0
    assert "group shop goes on in orders" in outcome.out
    assert "8 records are in" in outcome.out
    assert topics_in(there) == [info.name for info in shop.topics()]
    again = strandline("move", str(folder), str(there), "--json").json
    assert again["copied"] == 0
    assert {"group": "shop", "topic": "orders", "partition": 0, "offset": 1} in again["groups"]
    orders = next(row for row in again["topics"] if row["topic"] == "orders")
    assert (orders["records"], len(orders["partitions"][0]["checksum"])) == (2, 16)
    only = strandline("move", str(folder), str(there), "--verify-only")
    assert "8 of 8 records compared: the same" in only.out


def test_an_app_is_moved_with_its_topics_and_groups(
    shop: Log, strandline: Command, folder: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    assert strandline("move", str(folder), str(there), "--app", "shop").code == 0
    assert topics_in(there) == ["orders", "shop-totals-changelog"]
    assert (
        strandline("move", str(folder), str(there), "--app", "shop", "--topics", "sums").code == 0
    )
    assert topics_in(there) == ["orders", "shop-totals-changelog", "sums"]
    declared = tmp_path / "declared"
    loaded = strandline("move", str(folder), str(declared), "--app", "tests.cli.shop:app")
    assert (loaded.code, topics_in(declared)) == (0, ["orders", "shop-totals-changelog", "sums"])
    with changelog.open(there) as log:
        assert log.broker.groups() == ["shop"]


def counting(log: Log, state: Path) -> tuple[sl.App, sl.Topic[str, int], sl.Counter[str]]:
    """Return an app that counts its records, its input and its counter."""
    app = sl.App("counting", state_dir=state)
    app.log = log  # STRANDLINE_LOG names the source
    given = app.topic("given", key=str, value=int)
    seen = app.counter("seen", key=str)

    @app.task(given, stores=[seen])
    def count(record: sl.Record[str, int]) -> None:
        seen.add(record.key)

    return app, given, seen


@pytest.mark.parametrize("chosen", [[], ["--app", "counting"]])
def test_an_app_that_has_lost_its_state_is_not_moved(
    log: Log, strandline: Command, folder: Path, tmp_path: Path, chosen: list[str]
) -> None:
    """The target would have other topic ids, and would not show it."""
    app, given, _ = counting(log, tmp_path / "state")
    given.append([("a", 1)])
    app.run(until="idle", progress=False)
    log.delete_topic("counting-seen-changelog")
    outcome = strandline("move", str(folder), str(tmp_path / "there"), *chosen)
    assert outcome.code != 0
    assert "topic 'counting-seen-changelog' was deleted" in outcome.err


def test_chosen_topics_are_moved(
    shop: Log, strandline: Command, folder: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    assert strandline("move", str(folder), str(there), "--topics", "orders,sums").code == 0
    assert topics_in(there) == ["orders", "sums"]


def test_an_app_whose_inputs_are_moved_without_its_state_is_refused_until_the_rest_is_moved(
    log: Log, strandline: Command, folder: Path, tmp_path: Path
) -> None:
    """It would continue at its offsets, with an empty store."""
    app, given, _ = counting(log, tmp_path / "state")
    given.append([("a", 1), ("a", 2)])
    app.run(until="idle", progress=False)
    given.append([("a", 3)])
    there = tmp_path / "there"
    assert strandline("move", str(folder), str(there), "--topics", "given").code == 0
    assert topics_in(there) == ["counting-declarations", "given"]
    with changelog.open(there) as target:
        app, *_ = counting(target, tmp_path / "state there")
        with app, pytest.raises(InternalTopicLost, match="move FROM TO --app counting"):
            app.run(until="idle", progress=False)

    assert strandline("move", str(folder), str(there), "--app", "counting").code == 0
    with changelog.open(there) as target:
        app, _, seen = counting(target, tmp_path / "state there")
        with app:
            assert app.run(until="idle", progress=False) == 1
            assert app.query(seen).to_dict() == {"a": 3}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--app", "nobody"], "app 'nobody' has left nothing"),
        (["--topics", "ordres"], "has no topic ordres to move; there are: orders"),
        (["--verify-only"], "was not moved"),
    ],
)
def test_topics_that_cannot_be_moved_are_named(
    arguments: list[str],
    said: str,
    shop: Log,
    strandline: Command,
    folder: Path,
    tmp_path: Path,
) -> None:
    outcome = strandline("move", str(folder), str(tmp_path / "there"), *arguments)
    assert (outcome.code, said in outcome.err) == (1, True), outcome.err


def test_a_log_is_not_moved_onto_itself(shop: Log, strandline: Command, folder: Path) -> None:
    outcome = strandline("move", str(folder), f"{folder}/../{folder.name}")
    assert (outcome.code, "the same log" in outcome.err) == (1, True)
    outcome = strandline("move", str(folder.parent / "nowhere"), str(folder))
    assert (outcome.code, "there is no folder" in outcome.err) == (1, True)
