"""The guarantees differ as documented when a worker dies or sleeps at each point of its commit.

The worker is a process of its own. After it is gone another one continues, and the results show the
guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from tests.exactly_once.victim import ASLEEP, STATUS
from tests.kafka.apps import Totals, worker
from tests.systems import System
from tests.workers.processes import Process, ending
from tests.workers.threads import InThread

ONCE, TWICE, NEVER = [1, 2, 3], [1, 2, 3, 4], [1, 2]
"""Sums sent for three records if the second one is handled once, twice, or never."""
Sums = Mapping[str, list[int]]
"""Sums by the point at which the worker that has the second record is struck."""

DEATHS: dict[str, Sums] = {
    "exactly_once": {
        "before append": ONCE,
        "after append": ONCE,
        "after add_offsets": ONCE,
        "after end_transaction": ONCE,
        "after checkpoint": ONCE,
    },
    "at_least_once": {
        "before end_transaction": ONCE,
        "before commit_offsets": TWICE,
        "after commit_offsets": ONCE,
    },
    "at_most_once": {
        "before commit_offsets": ONCE,
        "before end_transaction": NEVER,
        "after end_transaction": ONCE,
    },
}
SLEEPERS: dict[str, Sums] = {
    "exactly_once": {"after append": ONCE, "before end_transaction": ONCE},
    "at_least_once": {"before commit_offsets": TWICE},
    "at_most_once": {"after commit_offsets": NEVER},
}


class Case:
    """One app, whose first worker is struck at a point."""

    def __init__(self, system: System, url: str, folder: Path, guarantee: str, point: str) -> None:
        self.name = f"{system.prefix}{guarantee}-{point.replace(' ', '-')}"
        state = system.state if url == system.url else Path(url) / "state"
        self.worker: Callable[[], Totals] = partial(worker, self.name, url, state, guarantee)
        self._arguments = [url, self.name, str(state), guarantee, point]
        self._said = folder / f"{self.name}.txt"

    def victim(self, fate: str) -> Process:
        return Process(["tests.exactly_once.victim", *self._arguments, fate], self._said)

    def begin(self, fate: str) -> Process:
        """Commit one record, append a second one, and start the victim."""
        made = self.worker()
        with made.app:
            made.words.append([("a", 1)])
            made.app.run(until="idle", progress=False)
            made.words.append([("a", 2)])
        return self.victim(fate)


def finish(made: Totals) -> int:
    """Run the app, with a third record at the end. Return the number of records before that one."""
    left = made.app.run(until="idle", progress=False, timeout=60)
    made.words.append([("a", 3)])
    made.app.run(until="idle", progress=False, timeout=60)
    return left


def sums(made: Totals) -> list[int]:
    """Return the sums that were sent. The last one is in the store."""
    sent = made.sent()["a"]
    assert made.app.query(made.seen).to_dict() == {"a": sent[-1]}
    return sent


def at_once(run_case: Callable[[Case], list[int]], cases: Mapping[str, Case]) -> Sums:
    """Run all cases concurrently, because most of their time is waiting."""
    with ThreadPoolExecutor(len(cases)) as pool:
        return dict(zip(cases, pool.map(run_case, cases.values()), strict=True))


@pytest.mark.parametrize(
    "guarantee",
    [
        pytest.param(name, marks=[] if name == "exactly_once" else pytest.mark.long_on_kafka)
        for name in DEATHS
    ],
)
def test_a_worker_that_dies_in_its_commit_keeps_its_guarantee(
    system: System, tmp_path: Path, guarantee: str
) -> None:
    """In a folder the worker is the log's owner, too."""

    def run_case(case: Case) -> list[int]:
        victim = case.begin("dies")
        with ending([victim]):
            assert victim.ended() == STATUS, victim.text()
        made = case.worker()
        with made.app:
            finish(made)
            return sums(made)

    cases = {
        point: Case(
            system,
            system.url if system.is_kafka else f"{system.url}-{number}",
            tmp_path,
            guarantee,
            point,
        )
        for number, point in enumerate(DEATHS[guarantee])
    }
    assert at_once(run_case, cases) == DEATHS[guarantee]


@pytest.mark.long_on_kafka
def test_a_worker_that_sleeps_in_its_commit_while_another_continues_keeps_its_guarantee(
    system: System, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    """Nothing that it writes after waking up takes effect."""
    log = system.open()  # keeps the owner of a folder awake

    def run_case(case: Case) -> list[int]:
        victim, made = case.begin("sleeps"), case.worker()
        with ending([victim]), made.app:
            eventually(lambda: ASLEEP in victim.text(), what="its sleep")
            left = finish(made)
            eventually(lambda: not shares(log, case.name), what="its end")
            wake(victim, eventually)
            found = sums(made)
        assert left == (0 if found == NEVER else 1)
        return found

    expected = {
        f"{guarantee}, {point}": (Case(system, system.url, tmp_path, guarantee, point), allowed)
        for guarantee, points in SLEEPERS.items()
        for point, allowed in points.items()
    }
    found = at_once(run_case, {name: case for name, (case, _) in expected.items()})
    assert found == {name: allowed for name, (_, allowed) in expected.items()}


@pytest.mark.long
@pytest.mark.long_on_kafka
def test_a_sleeping_worker_whose_slot_is_free_commits_nothing(
    system: System, tmp_path: Path, eventually: Callable[..., None]
) -> None:
    """Its producer is not fenced, so only its lost membership prevents the commit."""
    log = system.open()
    given = [(key, 1) for key in "abcdefgh"]

    def run_case(case: Case) -> list[int]:
        made = case.worker()
        with made.app:
            made.app.prepare()
            other = InThread(made.app, "count")
            eventually(lambda: other.numbers == [0, 1], what="work")
            victim = case.victim("sleeps")
            with ending([victim]):
                eventually(lambda: shares(log, case.name) == [1, 1], what="sharing")
                made.words.append(given)
                eventually(lambda: ASLEEP in victim.text(), what="its sleep")
                eventually(lambda: other.numbers == [0, 1], what="its end")
                eventually(lambda: is_done(log, made), what="the rest")
                wake(victim, eventually)
            other.stop()
            sent = made.sent()
            assert made.app.query(made.seen).to_dict() == dict.fromkeys(sent, 1)
        return sorted({len(sent.get(key, [])) for key, _ in given})

    cases = {
        guarantee: Case(system, system.url, tmp_path, guarantee, "before append")
        for guarantee in SLEEPERS
    }
    found = at_once(run_case, cases)
    assert found == {"exactly_once": [1], "at_least_once": [1], "at_most_once": [0, 1]}


def wake(victim: Process, eventually: Callable[..., None]) -> None:
    """Wake the victim: it is fenced, continues as a new member, and ends in order."""
    victim.thaw()
    eventually(lambda: "this worker was fenced" in victim.text(), what="its fencing")
    assert victim.end() == 0, victim.text()


def shares(log: Log, group: str) -> list[int]:
    return [len(member.held) for member in log.broker.describe_group(group).members]


def is_done(log: Log, made: Totals) -> bool:
    """Return True if all input is committed."""
    inputs = [TopicPartition(made.words.name, number) for number in range(2)]
    committed = log.broker.committed(made.app.name, inputs, require_stable=False)
    ends = log.broker.offsets(inputs)
    return all(tp in committed and committed[tp].offset == ends[tp].high_watermark for tp in inputs)


@pytest.mark.parametrize("guarantee", DEATHS)
@pytest.mark.long_on_kafka
def test_all_guarantees_give_the_same_result_without_failures(
    system: System, guarantee: str
) -> None:
    given = [("a", 1), ("b", 1), ("a", 1)]
    made = worker(f"{system.prefix}alike", system.url, system.state, guarantee)
    with made.app:
        made.words.append(given)
        made.app.run(until="idle", progress=False)
        made.words.append([("a", 1)])
        made.app.run(until="idle", progress=False)
        made.judge([*given, ("a", 1)])
