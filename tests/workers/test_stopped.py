"""A worker that is stopped for longer than tombstones stay, and continues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import CorruptLog
from strandline.changelog.log import Log
from strandline.changelog.records import TopicPartition
from strandline.statestore.engines.inspection import inspected
from tests.workers.keeping import PARTITIONS, keeping
from tests.workers.processes import Process, ending

Eventually = Callable[..., None]

CHANGELOGS = [TopicPartition("keep-last-changelog", number) for number in range(PARTITIONS)]
INPUTS = [TopicPartition("values", number) for number in range(PARTITIONS)]
KEYS = [f"k{number}" for number in range(20)]


@pytest.mark.long
@pytest.mark.parametrize("care", ["careful", "careless"])
def test_keys_deleted_meanwhile_do_not_reappear_when_a_stopped_worker_takes_over(
    care: str, tmp_path: Path, eventually: Eventually
) -> None:
    processes: list[Process] = []

    def start(name: str) -> Process:
        arguments = ["tests.workers.keeping", str(tmp_path / "log"), str(tmp_path / name), care]
        processes.append(Process(arguments, tmp_path / f"{name}.log"))
        return processes[-1]

    with changelog.open(tmp_path / "log", durability="os") as log, ending(processes):
        app, values = keeping(log)

        def handle(*records: tuple[str, int]) -> None:
            values.append(list(records))
            eventually(lambda: is_done(log), what="all records committed")

        def shared(among: int) -> None:
            eventually(lambda: owned_counts(log) == [PARTITIONS // among] * among, what="sharing")

        one = start("one")
        handle(*((key, 1) for key in KEYS))
        two = start("two")
        shared(2)
        eventually(lambda: reaches_all(tmp_path / "two", log), what="all of it at the second")
        two.freeze()
        shared(1)
        handle(*((key, 0) for key in KEYS[:10]))
        handle(*((key, 2) for key in KEYS[10:]))
        purge(log, eventually)
        two.thaw()
        shared(2)
        one.kill()
        shared(1)
        with sl.connect(log) as connection:
            there = dict(connection.store("keep/last").all())
        zombies = {key: there.pop(key) for key in KEYS[:10] if key in there}
        assert there == dict.fromkeys(KEYS[10:], 2)
        assert bool(zombies) is (care == "careless")
        app.close()


def is_done(log: Log) -> bool:
    committed = log.broker.committed("keep", INPUTS, require_stable=False)
    ends = log.broker.offsets(INPUTS)
    return all(tp in committed and committed[tp].offset == ends[tp].high_watermark for tp in INPUTS)


def owned_counts(log: Log) -> list[int]:
    """Return the number of partitions of each worker."""
    return [len(member.held) for member in log.broker.describe_group("keep").members]


def reaches_all(state: Path, log: Log) -> bool:
    """Return True if there is an engine for each changelog partition, up to its end."""
    ends = log.broker.offsets(CHANGELOGS)
    reached: dict[str, int] = {}
    for database in state.glob("**/db"):
        number = database.parent.name.partition(".")[0]
        try:
            with inspected(database.parent) as content:
                position = content.position()
        except (CorruptLog, OSError):
            return False  # it was being written
        if position is not None:
            reached[number] = max(reached.get(number, 0), position.offset)
    return all(
        reached.get(str(tp.partition), -1) >= ends[tp].last_stable_offset for tp in CHANGELOGS
    )


def purge(log: Log, eventually: Eventually) -> None:
    """Clean until there are no tombstones left."""
    topic = CHANGELOGS[0].topic
    log.alter_topic(topic, config={"delete.retention.ms": "0"})
    deletions = log.broker.offsets(CHANGELOGS)

    def are_purged() -> bool:
        log.broker.clean([topic])
        now = log.broker.offsets(CHANGELOGS)
        return all(
            now[tp].purged_end > 0 and now[tp].clean_end >= deletions[tp].last_stable_offset
            for tp in CHANGELOGS
        )

    eventually(are_purged, what="tombstones removed")
