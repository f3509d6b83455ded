"""Workers as processes: killed, frozen past their session, replaced one by one, with a dead
owner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline import changelog
from strandline.changelog.errors import StrandlineError
from tests.systems import System
from tests.workers.pipeline import judge
from tests.workers.processes import Process, ending, worker
from tests.workers.running import AttachedPipeline, Eventually

WORKERS = 2


class Cluster(AttachedPipeline):
    """A log, workers as processes, and a thread that writes input."""

    def __init__(self, system: System, folder: Path, eventually: Eventually) -> None:
        super().__init__(system, eventually)
        self._folder = folder

    def start(self, count: int = WORKERS) -> list[Process]:
        new = []
        for _ in range(count):
            said = self._folder / f"worker-{len(self.processes)}.log"
            new.append(worker(self.system, said))
            self.processes.append(new[-1])
        return new

    def shared(self, among: int) -> None:
        """Wait until `among` members own all partitions evenly."""

        def is_shared() -> bool:
            held = [len(m.held) for m in self.members()]
            return len(held) == among and sum(held) == 8 and max(held) - min(held) <= 1

        self._eventually(is_shared, what=f"sharing among {among}")

    def handled(self) -> None:
        """Wait until all written records are committed."""
        self._eventually(self.is_done, timeout=60, what="all records committed")

    def is_done(self) -> bool:
        broker = self.made.app.broker()
        try:
            every = [
                changelog.TopicPartition(topic, number)
                for topic in self.made.inputs
                for number in range(broker.topic(topic).partitions)
            ]
            committed = broker.committed(self.made.app.name, every, require_stable=False)
            ends = broker.offsets(every)
        except StrandlineError:
            return False
        return all(
            (committed[tp].offset if tp in committed else 0) >= ends[tp].high_watermark
            for tp in every
        )

    def judge(self) -> None:
        assert judge(self.made, self.given) == []


@pytest.fixture
def cluster(system: System, tmp_path: Path, eventually: Eventually) -> Iterator[Cluster]:
    made = Cluster(system, tmp_path, eventually)
    with ending(made.processes):
        yield made
        made.close()


@pytest.mark.long_on_kafka
def test_a_killed_worker_is_noticed_and_the_others_continue(cluster: Cluster) -> None:
    """It is noticed at once in a folder, and after its session timeout on Kafka."""
    one, two = cluster.start()
    cluster.shared(2)
    cluster.write(3_000)
    one.kill()
    cluster.write(3_000)
    cluster.shared(1)
    cluster.handled()
    cluster.judge()
    assert two.end() == 0
    cluster.judge()


@pytest.mark.long_on_kafka
def test_a_worker_frozen_past_its_session_changes_nothing_logs_it_and_rejoins(
    cluster: Cluster, eventually: Eventually
) -> None:
    one, _ = cluster.start()
    cluster.shared(2)
    cluster.write(2_000)
    one.freeze()
    cluster.write(2_000)
    cluster.shared(1)
    cluster.handled()
    cluster.judge()
    one.thaw()
    cluster.write(1_000)
    cluster.shared(2)
    cluster.write(1_000)
    cluster.handled()
    cluster.judge()
    eventually(lambda: "this worker was fenced" in one.text(), what="the fenced one says so")


@pytest.mark.parametrize("system", ["embedded"], indirect=True)
def test_the_owner_is_killed_under_load_and_another_takes_over(
    cluster: Cluster, tmp_path: Path
) -> None:
    owner = Process(["strandline", "serve", cluster.system.url, "--create"], tmp_path / "owner")
    cluster.processes.append(owner)
    cluster._eventually(lambda: "serving" in owner.text() or "owns" in owner.text())
    cluster.start()
    cluster.shared(2)
    cluster.write(2_000)
    owner.kill()
    cluster.write(2_000)
    cluster.shared(2)
    cluster.handled()
    cluster.judge()


@pytest.mark.long_on_kafka
def test_new_workers_continue_after_all_are_killed(cluster: Cluster) -> None:
    workers = cluster.start()
    cluster.shared(2)
    cluster.write(4_000)
    for process in workers:
        process.kill()
    cluster.start(1)
    cluster.handled()
    cluster.judge()


@pytest.mark.long_on_kafka
def test_workers_are_replaced_one_by_one_under_load(cluster: Cluster) -> None:
    first = cluster.start()
    cluster.shared(2)
    for process in first:
        cluster.write(1_000)
        cluster.start(1)
        cluster.shared(3)
        cluster.write(1_000)
        assert process.end() == 0
        cluster.shared(2)
    cluster.handled()
    cluster.judge()
