"""Two owners of a partition never both commit, at whichever step the first one stopped.

The first worker is stopped before and after each call that it makes to the log, from joining to its
commits. While it sleeps it is removed from the group. The second one takes over its partitions,
handles their records and commits. Then the first continues where it was.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import pytest

from strandline.changelog.broker import Broker
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.groups.groups import GroupCoordinator
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import MemberFenced
from strandline.changelog.groups import Subscription
from strandline.changelog.memory_storage import MemoryStorage
from strandline.changelog.records import TopicPartition
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.running import worker_on
from strandline.framework.container.worker import Worker
from strandline.framework.options import Guarantee
from tests.forms import by_form
from tests.workers.pipeline import Pipeline, judge, pipeline

GIVEN = [(f"{'abc'[n % 3]}{n % 7}", n) for n in range(60)]
LATER = [(f"{'abc'[n % 3]}{n % 7}", n) for n in range(60, 90)]


class Story(NamedTuple):
    """Result of a run."""

    point: str
    """Step at which the first worker slept; empty if it has fewer steps."""
    calls: list[str]
    """Calls of the first worker to the log."""
    wrong: list[str]
    more: int
    """Number of records counted in excess of those given; negative if some were missed."""


class Seated:
    """A member that sends heartbeats only when its assignment is requested."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.member = broker.join_group(
            "pipeline",
            Subscription(
                ("pipeline-letter-repartition", "words"), together=[["words"]], client="test"
            ),
        )
        self._calls = 0
        self._seen = 0
        self._holds: Collection[TopicPartition] = ()

    def allowed(self) -> frozenset[TopicPartition]:
        self._calls += 1
        grant = self._broker.heartbeat(self.member, self._calls, self._seen, self._holds)
        self._seen = grant.number
        return frozenset(grant.partitions)

    def standbys(self) -> frozenset[TopicPartition]:
        return frozenset()

    def holds(self, partitions: Collection[TopicPartition]) -> bool:
        self._holds = partitions
        # the error is raised when the assignment is requested
        with contextlib.suppress(MemberFenced):
            self.allowed()
        return True

    def leave(self) -> None:
        self._broker.leave_group(self.member)


class Interrupted:
    """The log as the first worker sees it: something else happens at one of its calls."""

    def __init__(self, broker: Broker, at: int, *, after: bool, meanwhile: Callable[[], None]):
        self.calls: list[str] = []
        self.point = ""
        self._broker = broker
        self._at = at
        self._after = after
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._broker, name)

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            is_it = len(self.calls) == self._at
            if is_it and not self._after:
                self.point = f"before {name}"
                self._meanwhile()
            try:
                return method(*args, **options)
            finally:  # an error is an answer too
                if is_it and self._after:
                    self.point = f"after {name}"
                    self._meanwhile()

        return call


class World:
    """A log, and two workers of which the first is interrupted once."""

    def __init__(self, at: int, *, after: bool, guarantee: Guarantee, late: bool) -> None:
        self.clock = ManualClock()
        self.owner = Owner(MemoryStorage(), clock=self.clock, background=False)
        self.late = late
        self.options = {"processing_guarantee": guarantee, "commit_records": 20}
        self.broker = Interrupted(self.owner, at, after=after, meanwhile=self.meanwhile)
        self.first_app = pipeline(self.owner, clock=self.clock, **self.options)
        self.first_app.app.prepare()
        self.first_app.words.append(GIVEN)
        self.second_app = pipeline(self.owner, clock=self.clock, **self.options)
        self.second: Worker | None = None
        self.ready = False
        self.first = self.worker(self.first_app, self.broker)

    def worker(self, made: Pipeline, broker: Any) -> Worker:
        folders = StoreFolders(None, self.clock)
        worker = worker_on(
            broker, made.app.declared, self.clock, made.app.session.options, folders, alone=True
        )
        worker._session._join = lambda: Seated(broker)
        return worker

    def run(self) -> None:
        """Run the first worker, interrupt it, and let both continue."""
        self.ready = True
        if not self.late:
            self.second = self.worker(self.second_app, self.owner)
        for _ in range(12):
            self.first.cycle(limit=11)
        self.first.commit()
        self.first_app.words.append(LATER)
        for _ in range(15):
            self.first.cycle()
            if self.second is not None:
                self.second.cycle()
        for worker in filter(None, (self.first, self.second)):
            worker.commit()

    def meanwhile(self) -> None:
        """Let the session of the sleeping first worker expire, and the second one handle
        everything."""
        if not self.ready:
            return
        for _ in range(5):
            self.clock.advance(3_000)
            self.owner.tick()
            if self.second is not None:  # it is awake, and sends heartbeats
                self.second.cycle()
        if self.second is None:
            self.second = self.worker(self.second_app, self.owner)
        for _ in range(12):
            self.second.cycle()
        self.second.commit()

    def close(self) -> None:
        for worker in filter(None, (self.first, self.second)):
            worker.close()
        self.owner.close()


def story(at: int, *, after: bool, late: bool, guarantee: Guarantee = "exactly_once") -> Story:
    world = World(at, after=after, guarantee=guarantee, late=late)
    world.run()
    made, given = world.first_app, [*GIVEN, *LATER]
    counted = made.app.query(made.per_word).to_dict()
    wanted = Counter(word for word, _ in given)
    more = sum(counted[word].n - wanted[word] for word in wanted)
    found = Story(world.broker.point, list(world.broker.calls), judge(made, given), more)
    world.close()
    return found


def stories(**how: Any) -> Iterator[Story]:
    """Run a story for each step; in the short form for the first and last of each kind of call."""
    names = story(0, **how).calls
    steps: Collection[int] = range(1, len(names) + 1)
    by_name = [[at for at in steps if names[at - 1] == name] for name in sorted(set(names))]
    steps = sorted({at for kind in by_name for at in by_form((kind[0], kind[-1]), kind)})
    for at in steps:
        told = story(at, **how)
        assert told.point
        yield told


@pytest.mark.parametrize(
    ("after", "late"),
    [
        pytest.param(False, True, id="before, in its slot", marks=pytest.mark.long),
        pytest.param(True, False, id="after, beside it"),
        pytest.param(False, False, id="before, beside it", marks=pytest.mark.long),
        pytest.param(True, True, id="after, in its slot", marks=pytest.mark.long),
    ],
)
def test_a_worker_that_sleeps_at_any_step_neither_doubles_nor_loses_records(
    after: bool, late: bool
) -> None:
    points = set()
    for told in stories(after=after, late=late):
        assert told.wrong == [], told.point
        points.add(told.point.split()[1])
    assert {"join_group", "init_producer", "heartbeat", "committed", "offsets"} <= points
    assert {"fetch", "append", "add_offsets", "end_transaction"} <= points


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_the_weaker_guarantees_fail_only_in_their_direction(guarantee: Guarantee) -> None:
    """Writes of a worker that wakes up apply to a state that has changed meanwhile."""
    for told in stories(after=False, late=False, guarantee=guarantee):
        if guarantee == "at_least_once":
            assert told.more >= 0, told.point
        else:
            assert told.more <= 0, told.point


@pytest.mark.long
def test_without_fencing_records_are_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the membership check, the work of a worker that slept counts although it was
    repeated."""
    monkeypatch.setattr(GroupCoordinator, "check_commit", lambda *_: None)
    assert any(story(at, after=False, late=False).wrong for at in range(1, 400, 3))
