"""A reset that is killed at any step: the app has lost nothing, begins again, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.errors import InternalTopicLost
from strandline.changelog.memory_storage import MemoryStorage
from strandline.framework.cli.reset import carry_out, plan_for
from tests.forms import first_of

RECORDS = 30


class Killed(BaseException):
    """The process ends here."""


def with_store(log: Owner, folder: Path) -> tuple[sl.App, Any]:
    """Return an app whose task counts keys in two stores, and how to see its state."""
    app = sl.App("shop", log=log, state_dir=folder)
    sales = app.topic("sales", key=str, value=int, partitions=2)
    counts = app.store("counts", key=str, value=int, default=0)
    sums = app.store("sums", key=str, value=int, default=0)

    @app.task(sales, stores=[counts, sums])
    def tally(record: sl.Record[str, int]) -> None:
        counts[record.key] += 1
        sums[record.key] += record.value

    return app, lambda: (app.query(counts).to_dict(), app.query(sums).to_dict())


def with_repartition(log: Owner, folder: Path) -> tuple[sl.App, Any]:
    """Return an app whose rows pass a repartition topic before they are counted."""
    app = sl.App("shop", log=log, state_dir=folder)
    sales = app.topic("sales", key=str, value=int, partitions=2)
    rows = app.stream(sales).with_columns(digit=sl.col("value") % 10)
    out = rows.group_by("digit").agg(n=sl.count(), s=sl.sum("value"), name="by-digit").to("out")

    def state() -> Any:
        found = out.to_polars().group_by("digit").last()
        return sorted(found.select("digit", "n", "s").rows())

    return app, state


def without_state(log: Owner, folder: Path) -> tuple[sl.App, Any]:
    """Return an app that sends each record again by another key, and keeps the last of each."""
    app = sl.App("shop", log=log, state_dir=folder)
    sales = app.topic("sales", key=str, value=int, partitions=2)
    digits = app.repartition(sales, lambda record: record.value % 10, name="digits", key_type=int)
    out = app.topic("out", key=int, value=int)

    @app.task(digits)
    def send(record: sl.Record[int, int]) -> None:
        out.send(record.key, record.value)

    return app, lambda: len(set(out.to_polars()["value"].to_list()))


APPS = [with_store, with_repartition, without_state]


def command(app: sl.App, state: Path) -> None:
    """Reset by the command line."""
    plan = plan_for(app.broker(), "shop", "unused")
    carry_out(app.broker(), plan, yes=True, json=True)


def method(app: sl.App, state: Path) -> None:
    """Reset by the method of the app."""
    app.reset()


def started(made: Any, log: Owner, folder: Path) -> Any:
    app, state = made(log, folder)
    app.run(until="idle", progress=False)
    return state()


@pytest.mark.parametrize("reset", first_of([command, method], 1))
@pytest.mark.parametrize("made", APPS)
def test_a_reset_can_be_killed_at_each_step(
    tmp_path: Path, made: Any, reset: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after each change of the log."""
    outcomes: list[str] = []
    while not outcomes or outcomes[-1] != "not killed":
        folder = tmp_path / str(len(outcomes))
        log = Owner(MemoryStorage(), background=False)
        outcomes.append(_killed_reset(log, made, reset, folder, len(outcomes), monkeypatch))
    assert outcomes.count("refused") >= 2
    assert outcomes.count("begun again") >= 2


def _killed_reset(
    log: Owner,
    made: Any,
    reset: Callable[..., None],
    folder: Path,
    survived: int,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Kill a reset after it has survived this many moments; return what became of the app."""
    app, state = made(log, folder / "state")
    app.declared.topics["sales"].append([(f"k{n % 7}", n) for n in range(RECORDS)])
    app.run(until="idle", progress=False)
    expected = state()
    moments = iter(range(1_000))
    broker = app.broker()

    def moment() -> None:
        if next(moments) == survived:
            raise Killed

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            moment()
            result = call(*args, **options)
            moment()
            return result

        return called

    outcome = "not killed"
    with monkeypatch.context() as patched:
        for name in ("delete_topic", "commit_offsets"):
            patched.setattr(broker, name, killing(getattr(broker, name)))
        try:
            reset(app, folder / "state")
        except Killed:
            outcome = "killed"
    offsets = log.committed("shop")
    try:
        assert started(made, log, folder / "state") == expected
    except InternalTopicLost:
        assert outcome == "killed"
        reset(made(log, folder / "state")[0], folder / "state")
        assert started(made, log, folder / "state") == expected
        return "refused"
    if outcome == "killed":
        return "lost nothing" if offsets else "begun again"
    return outcome


def test_rows_between_two_tasks_that_were_deleted_are_not_skipped(tmp_path: Path) -> None:
    log = Owner(MemoryStorage(), background=False)
    app, _ = with_repartition(log, tmp_path / "state")
    app.declared.topics["sales"].append([(f"k{n % 7}", n) for n in range(RECORDS)])
    app.run(count=RECORDS // 2, progress=False)
    [name] = app.declared.repartition_topics()
    made = log.topic(name)
    log.delete_topic(name)
    for again in (False, True):
        if again:
            log.create_topic(name, made.partitions, schema=made.schema)
        app, state = with_repartition(log, tmp_path / "state")
        with pytest.raises(InternalTopicLost, match=name):
            app.run(until="idle", progress=False)
    app.reset()
    app.run(until="idle", progress=False)
    assert sum(n for _, n, _ in state()) == RECORDS
