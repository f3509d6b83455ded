"""Standby copies of stores: their placement, their progress, and their use in assignments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.changelog.embedded.groups.group import Group
from strandline.changelog.groups import Subscription
from strandline.changelog.records import TopicPartition
from tests.forms import few_on_kafka
from tests.systems import System
from tests.workers.pipeline import PARTITIONS, judge, some
from tests.workers.test_assignment import Running

Eventually = Callable[..., None]


def test_each_partition_has_the_requested_number_of_copies_evenly_at_other_members() -> None:
    group = Group("g", {"t": 6}.get)  # type: ignore[arg-type]
    for name in "abc":
        group.join(name, Subscription(("t",), standby_replicas=1), now=0.0)
    members = [group.member(name) for name in "abc"]
    for member in members:
        assert len(member.standbys) == 2
        assert not member.standbys & member.target
    assert len(frozenset[TopicPartition]().union(*(m.standbys for m in members))) == 6


def test_a_member_with_a_copy_gets_the_partition_first() -> None:
    group = Group("g", {"t": 6}.get)  # type: ignore[arg-type]
    for name in "abc":
        group.join(name, Subscription(("t",), standby_replicas=1), now=0.0)
    copies = {name: group.member(name).standbys for name in "bc"}
    gone = group.member("a").target
    group.leave(["a"])
    for name in "bc":
        assert copies[name] & gone <= group.member(name).target


def test_a_single_member_has_no_copies() -> None:
    group = Group("g", {"t": 6}.get)  # type: ignore[arg-type]
    group.join("a", Subscription(("t",), standby_replicas=2), now=0.0)
    assert group.member("a").standbys == frozenset()


def copies(worker: Running) -> dict[TopicPartition, int]:
    running = worker.made.app.runner.worker
    return running._tasks._standbys.positions() if running else {}


@pytest.mark.long_on_kafka
@pytest.mark.parametrize("apart", few_on_kafka([True, False]), ids=["on two machines", "on one"])
def test_a_copy_follows_the_changelog_and_replays_only_its_tail_when_it_takes_over(
    apart: bool,
    system: System,
    tmp_path: Path,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two workers on Kafka: among more, Kafka chooses the new owner without regard to copies."""
    caplog.set_level("INFO", logger="strandline")
    log = system.open(durability="os")
    state = [tmp_path / "one", tmp_path / "two"] if apart else [system.state] * 2
    options = {"prefix": system.prefix, "standby_replicas": 1}
    one = Running(log, state[0], **options)
    eventually(lambda: len(one.numbers) == PARTITIONS, what="the first at work")
    given = some(4_000)
    one.made.words.append(given)
    eventually(lambda: judge(one.made, given) == [], what="all handled")
    two = Running(log, state[1], **options)
    eventually(lambda: len(two.numbers) == PARTITIONS // 2, what="sharing")

    def are_warm() -> bool:
        """Return True if each keeps copies of the other's stores, up to the changelogs' ends."""
        followed = {**copies(one), **copies(two)}
        ends = log.broker.offsets(list(followed))
        return len(followed) == 2 * PARTITIONS and all(
            at >= ends[tp].last_stable_offset for tp, at in followed.items()
        )

    eventually(are_warm, what="copies of everything")
    caplog.clear()
    crash(one)
    eventually(lambda: len(two.numbers) == PARTITIONS, what="all at the second")

    def replayed() -> list[int]:
        """Return the records replayed by each restore; it is logged when the last task is back."""
        return [
            record.args[2]
            for record in caplog.records
            if record.msg.startswith("app %s has %d store partitions back")
        ]

    eventually(replayed, what="the end of the restore")
    assert sum(replayed()) < len(given) / 10
    assert judge(two.made, given) == []
    two.stop()


def crash(worker: Running) -> None:
    """End it without a commit or a checkpoint. The log sees it leave."""
    running = worker.made.app.runner.worker
    assert running is not None
    running.checkpoint_all = lambda: None  # type: ignore[method-assign]
    worker.stop()
