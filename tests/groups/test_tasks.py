"""Members of one group are workers of one program, or of two versions of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.errors import InvalidConfig
from strandline.changelog.groups import Subscription, check_tasks


def member(*tasks: str, topics: tuple[str, ...] = ("t",)) -> Subscription:
    return Subscription(topics, tasks=[task.split() for task in tasks])


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (member("count t"), member("count t")),
        (member("count t", "sum t"), member("count t")),  # a task that was added
        (member("count t"), member("count t", "sum t")),
        (member("count t"), member("sum u", topics=("u",))),  # nothing in common
        (member("count t", "a u", topics=("t", "u")), member("count t", "b v", topics=("t", "v"))),
        (member(), member()),
        (Subscription(("t",)), member("count t")),  # a member that does not tell
    ],
)
def test_members_may_share_topics(mine: Subscription, other: Subscription) -> None:
    check_tasks("g", mine, [("other", other)])
    check_tasks("g", other, [("other", mine)])


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (member("count t"), member("sum t")),
        (member("count t", "max t"), member("count t", "sum t")),
        (member("count t"), member()),  # a consumer
    ],
)
def test_members_of_two_programs_are_refused(mine: Subscription, other: Subscription) -> None:
    for one, two in ((mine, other), (other, mine)):
        with pytest.raises(InvalidConfig, match="each program would handle a part"):
            check_tasks("g", one, [("other", two)])


def test_two_programs_with_the_name_of_one_app_do_not_divide_its_records(tmp_path: Path) -> None:
    with changelog.open(tmp_path / "log", durability="os") as log:
        first, second = (program(log, task) for task in ("count", "sum"))
        first.topic("t", value=int, partitions=4).append([(f"k{n}", n) for n in range(20)])

        @first.task(first.topic("more", value=int), name="start")
        def start(_: sl.Record[str, int]) -> None:
            with pytest.raises(sl.InvalidConfig, match="a worker with the tasks count"):
                second.run(until="idle")

        first.topic("more", value=int).append([("a", 1)])
        first.run(until="idle")
        assert len(first.query("count").to_dict()) == 20


def program(log: changelog.Log, task: str) -> sl.App:
    app = sl.App("shop", log=log)
    store = app.store(task, value=int)

    @app.task(app.topic("t", value=int, partitions=4), name=task, stores=[store])
    def handle(record: sl.Record[str, int]) -> None:
        store[record.key] = record.value

    return app
