"""`upgrade=`: values of an older declaration are rewritten once, across any failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.clock import SystemClock
from strandline.changelog.records import TopicPartition
from strandline.framework.spark.options import SourceOptions
from strandline.framework.spark.tables import plan_store, read_store, store_schema
from strandline.framework.store_declarations import StoreDeclarations
from strandline.statestore import open_store, recorded, rewriting
from strandline.statestore.recorded import DeclarationLog
from tests.declarations.programs import Program, program

CHANGELOG = "shop-totals-changelog"


@dataclass
class Total:
    euros: float
    n: int = 1


CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def calls() -> None:
    CALLS.clear()


def upgraded(old: int) -> Total:
    CALLS.append(old)
    return Total(old / 100, 7)


def put(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = Total(record.value)


NEW: dict[str, Any] = {"value": Total, "upgrade": upgraded, "handle": put}
CENTS = {f"k{number:03}": number for number in range(40)}
EXPECTED = {key: Total(cents / 100, 7) for key, cents in CENTS.items()}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with program(tmp_path / "log", value=int) as before:
        before.run(*CENTS.items())
    return tmp_path / "log"


def test_values_are_upgraded_once(log: Path) -> None:
    with program(log, **NEW) as after:
        after.run(("new", 3.5))
        assert after.content() == {**EXPECTED, "new": Total(3.5)}
    assert sorted(CALLS) == sorted([*CENTS.values()] * 2), "in a trial, and to rewrite them"
    with program(log, **NEW) as again:
        again.run()
        assert again.content() == {**EXPECTED, "new": Total(3.5)}
    assert len(CALLS) == 2 * len(CENTS)
    with program(log, value=Total, handle=put) as without:
        assert without.run(("k000", 1.0)) == 1, "the function is needed no more"
    with program(log, value=int) as older, pytest.raises(sl.InvalidConfig, match="int"):
        older.run()


def test_files_and_changelog_agree(log: Path) -> None:
    with program(log, **NEW) as after:
        after.run()
    with program(log, **NEW) as with_files:
        assert with_files.content() == EXPECTED
    with program(log, state=log / "elsewhere", **NEW) as without_files:
        without_files.run()
        assert without_files.content() == EXPECTED
    assert len(CALLS) == 2 * len(CENTS)


class Died(BaseException):
    """The process has died."""


class Dying:
    """Replaces the call that appends transactions, and dies before or after one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> None:
        self.left, self.after = at, after
        self.lock = threading.Lock()  # partitions are opened on several threads
        self.append = recorded.append_at_once
        monkeypatch.setattr(rewriting, "append_at_once", self)
        monkeypatch.setattr(rewriting, "CHUNK_RECORDS", 4)

    def __call__(self, *args: Any) -> None:
        with self.lock:
            self.left -= 1
            dies = self.left == 0
        if dies and not self.after:
            raise Died
        self.append(*args)
        if dies:
            raise Died


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after it"])
@pytest.mark.parametrize("at", [1, 2, 5, 8])
def test_an_upgrade_continues_where_it_died(
    log: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    with monkeypatch.context() as dying:
        Dying(dying, at, after=after)
        with program(log, **NEW) as dies, pytest.raises(Died):
            dies.run()
    monkeypatch.setattr(rewriting, "CHUNK_RECORDS", 4)
    with program(log, **NEW) as made:
        made.run()
        assert made.content() == EXPECTED
        assert (
            not DeclarationLog(made.app.broker(), "shop", SystemClock())
            .read()
            .unfinished(CHANGELOG, 2)
        )


def test_a_half_rewritten_store_cannot_be_read(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dying:
        Dying(dying, 2, after=True)
        with program(log, **NEW) as dies, pytest.raises(Died):
            dies.run()
    with program(log, **NEW) as made:
        with pytest.raises(sl.InvalidConfig, match="older declaration.*run it first"):
            made.content()
        with (
            sl.connect(made.app.broker()) as connection,
            pytest.raises(sl.InvalidConfig, match="older declaration"),
        ):
            connection.store("shop/totals").get("k000")
        options = SourceOptions.parse({"path": "/log", "store": "shop/totals"})
        with pytest.raises(sl.InvalidConfig, match="older declaration"):
            plan_store(made.app.broker(), options)
        made.run()
        assert made.content() == EXPECTED
        with sl.connect(made.app.broker()) as connection:
            assert connection.store("shop/totals")["k007"] == {"euros": 0.07, "n": 7}
        target = store_schema(made.app.broker(), options)
        tables = [
            batch
            for each in plan_store(made.app.broker(), options)
            for batch in read_store(made.app.broker(), each, target, options)
        ]
        rows = [row for batch in tables for row in batch.to_pylist()]
        assert {row["key"]: row["value"]["euros"] for row in rows} == {
            key: total.euros for key, total in EXPECTED.items()
        }


def test_an_aborted_transaction_is_repeated(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, left = recorded.append_at_once, [3]

    def refused(*args: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise sl.TransactionAborted("timed out")
        append(*args)

    monkeypatch.setattr(rewriting, "append_at_once", refused)
    with program(log, **NEW) as made:
        made.run()
        assert made.content() == EXPECTED


def test_without_its_function_an_unfinished_store_is_refused(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        Dying(dying, 2, after=True)
        with program(log, **NEW) as dies, pytest.raises(Died):
            dies.run()
    with program(log, value=Total) as without, pytest.raises(sl.InvalidConfig, match="upgrade="):
        without.run()
    with program(log, value=int) as older, pytest.raises(sl.InvalidConfig, match="totals"):
        older.run()
    with program(log, value=str, upgrade=str) as third, pytest.raises(sl.InvalidConfig):
        third.run()
    with program(log, **NEW) as made:
        made.run()
        assert made.content() == EXPECTED


def broken(old: int) -> Any:
    if old == 17:
        raise ValueError("no seventeens")
    return upgraded(old)


def wrong(old: int) -> Any:
    return "text" if old == 17 else upgraded(old)


def nothing(old: int) -> Any:
    return None


@pytest.mark.parametrize(
    ("function", "said"),
    [(broken, "'k017'.*no seventeens"), (wrong, "'k017'.*Total"), (nothing, "returned None")],
)
def test_a_failing_function_names_the_key_and_changes_nothing(
    log: Path, function: Callable[[int], Any], said: str
) -> None:
    with (
        program(log, **{**NEW, "upgrade": function}) as fails,
        pytest.raises(sl.InvalidConfig, match=f"{said}.*nothing was changed"),
    ):
        fails.run()
    with program(log, value=int) as older:
        assert older.run(("late", 1)) == 1
        assert older.content() == {**CENTS, "late": 1}
    with program(log, **NEW) as mended:
        mended.run()
        assert mended.content() == {**EXPECTED, "late": Total(0.01, 7)}


def test_a_function_may_fail_for_values_that_were_replaced_or_deleted(tmp_path: Path) -> None:
    def put_or_delete(store: Any, record: sl.Record[str, Any]) -> None:
        if record.value == 0:
            del store[record.key]
        else:
            store[record.key] = record.value

    with program(tmp_path / "log", value=int, handle=put_or_delete) as before:
        before.run(("replaced", 17), ("deleted", 17), ("kept", 1))
        before.run(("replaced", 2), ("deleted", 0))
    with program(tmp_path / "log", **{**NEW, "upgrade": broken}) as after:
        after.run()
        assert after.content() == {"replaced": Total(0.02, 7), "kept": Total(0.01, 7)}


def test_a_function_that_fails_only_when_values_are_rewritten_names_the_key(log: Path) -> None:
    def second_time(old: int) -> Any:
        if len(CALLS) > len(CENTS):
            raise ValueError("too late")
        return upgraded(old)

    with (
        program(log, **{**NEW, "upgrade": second_time}) as fails,
        pytest.raises(sl.InvalidConfig, match="too late.*later ones are unchanged"),
    ):
        fails.run()
    with program(log, **NEW) as mended:
        mended.run()
        assert mended.content() == EXPECTED


def test_an_upgrade_overtaken_by_another_worker_changes_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Program(log, **NEW)
    broker, clock = made.app.broker(), SystemClock()
    infos = made.app.declared.prepare(broker)
    spec = made.store.spec
    declared = StoreDeclarations("shop", [spec], infos, broker, clock)
    declared.record()
    declared.confirm({CHANGELOG})
    partition = TopicPartition(CHANGELOG, 0)
    append = recorded.append_at_once

    def finish() -> None:
        store = open_store(spec, made.app.log, clock=clock, engine=_memory())
        store.restore(broker, partition)
        declared.finish(store, partition)
        store.close()

    def stalled(*args: Any) -> None:
        monkeypatch.setattr(rewriting, "append_at_once", append)
        finish()  # another worker does all of it meanwhile
        append(*args)

    monkeypatch.setattr(rewriting, "append_at_once", stalled)
    with pytest.raises(sl.Retriable, match="interrupted"):
        finish()
    made.run()
    assert made.content() == EXPECTED
    made.app.close()


def _memory() -> Any:
    from strandline.statestore.engines.memory import MemoryEngine

    return MemoryEngine()


def test_an_upgrade_is_refused_while_an_older_worker_runs(log: Path) -> None:
    with program(log, value=int) as older:
        broker = older.app.broker()
        member = broker.join_group("shop", _subscription())
        with program(log, **NEW) as newer:
            newer.app.log = broker  # type: ignore[assignment]
            with pytest.raises(sl.InvalidConfig, match="stop all of them first"):
                newer.run()
            broker.leave_group(member)
            newer.run()
            assert newer.content() == EXPECTED


def _subscription() -> Any:
    from strandline.changelog.groups import Subscription

    return Subscription(["sales"], together=[["sales"]], client="older-1")


def test_a_time_to_live_stays_with_each_value(log: Path, tmp_path: Path) -> None:
    where = tmp_path / "other"
    with program(where, value=int, ttl_ms=3_600_000) as before:
        before.run(("york", 100))
        [first] = _stored(before)
    with program(where, value=bytes, ttl_ms=9_999_999, upgrade=lambda old: b"%d" % old) as after:
        after.run()
        assert after.content() == {"york": b"100"}
        [second] = _stored(after)
    assert first[:9] == second[:9], "it expires when it was to expire"


def _stored(made: Program) -> list[bytes]:
    last: dict[bytes, bytes] = {}
    for partition in range(2):
        at = {TopicPartition(CHANGELOG, partition): 0}
        for fetched in made.app.broker().fetch(at).values():
            for batch in fetched.batches:
                keys, values = (batch.columns.column(n).to_pylist() for n in ("key", "value"))
                last |= dict(zip(keys, values, strict=True))
    return list(last.values())


FIGURES = {"n": sl.count(), "worst": sl.max("x")}


def figures(app: sl.App, **more: Any) -> Any:
    return app.aggregates("totals", **{**FIGURES, **more})


def add(store: Any, record: sl.Record[str, Any]) -> None:
    store.add(record.key, x=record.value)


@pytest.mark.parametrize(
    "changed",
    [
        {"least": sl.min("x")},
        {"worst": sl.min("x")},
        {"worst": sl.max("y")},
        {"n": sl.count("x")},
        {"worst": sl.mean("x")},
    ],
)
def test_other_figures_are_refused(tmp_path: Path, changed: Any) -> None:
    with program(tmp_path, store=figures, handle=add) as before:
        before.run(("york", 1))
    other = program(tmp_path, store=lambda app: figures(app, **changed), handle=add)
    with other as after, pytest.raises(sl.InvalidConfig, match="it keeps n=count"):
        after.run(("york", 2))
    with program(tmp_path, store=figures, handle=add) as again:
        again.run()


def test_figures_can_be_upgraded_too(tmp_path: Path) -> None:
    with program(tmp_path, store=figures, handle=add) as before:
        before.run(("york", 5))

    def more(app: sl.App) -> Any:
        return figures(
            app, least=sl.min("x"), settings={"upgrade": lambda old: {**old, "least": 0}}
        )

    with program(tmp_path, store=more, handle=add) as after:
        after.run(("york", 7))
        held = after.content()["york"]
        assert (held.n, held.worst, held.least) == (2, 7, 0)


def test_a_counter_is_a_store_of_ints(tmp_path: Path) -> None:
    with program(tmp_path, store=lambda app: app.counter("totals"), handle=_count) as before:
        before.run(("york", 5))
    with program(tmp_path, value=int, default=0, handle=_add_one) as after:
        after.run(("york", 7))
        assert after.content() == {"york": 2}


def _count(store: Any, record: sl.Record[str, Any]) -> None:
    store.add(record.key)


def _add_one(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] += 1


def rounded(old: float) -> str:
    if type(old) is not float:
        raise TypeError(f"{old!r} is no float")
    return str(round(old))


def listed(old: str) -> list[str]:
    if type(old) is not str:
        raise TypeError(f"{old!r} is no str")
    return [old]


def test_values_of_declarations_before_the_last_one_fail_in_no_trial(tmp_path: Path) -> None:
    """They are in the changelog until it is compacted."""
    log = tmp_path / "log"
    with program(log, value=float) as first:
        first.run(*((key, float(cents)) for key, cents in CENTS.items()))
    with program(log, value=str, upgrade=rounded) as second:
        second.run()
    with program(log, value=list[str], upgrade=listed) as third:  # and no start without upgrade=
        third.run()
        assert third.content() == {key: [str(cents)] for key, cents in CENTS.items()}


def test_values_from_before_a_time_to_live_fail_in_no_trial(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with program(log, value=bytes) as first:
        first.run(("a", b"1"))
    with program(log, value=bytes, ttl_ms=60_000) as second:
        second.run()
    with program(log, value=str, upgrade=bytes.decode, ttl_ms=60_000) as third:
        third.run()
        assert third.content() == {"a": "1"}


def test_an_older_program_that_runs_during_a_trial_ends_the_newer_one(log: Path) -> None:
    tried = threading.Event()

    def while_an_older_one_runs(old: int) -> Any:
        if not tried.is_set():
            tried.set()
            with program(log, value=int) as older:
                older.run(("late", 1000))
        if old == 1000:
            raise ValueError("no thousands")
        return upgraded(old)

    with (
        program(log, **{**NEW, "upgrade": while_an_older_one_runs}) as fails,
        pytest.raises(sl.InvalidConfig, match="while they were tried"),
    ):
        fails.run()
    with program(log, value=int) as older:
        older.run()
        assert older.content() == {**CENTS, "late": 1000}


@dataclass
class Narrow:
    n: int


@dataclass
class Wider:
    n: int
    note: str = ""


def test_an_upgrade_leads_back_to_a_declaration_with_fewer_fields(tmp_path: Path) -> None:
    with program(tmp_path / "log", value=Narrow, handle=count) as older:
        older.run(("a", 1))
    with program(tmp_path / "log", value=Wider, handle=count_with_note) as newer:
        newer.run(("a", 2), ("b", 3))
    with (
        program(tmp_path / "log", value=Narrow, handle=count) as older,
        pytest.raises(sl.InvalidConfig, match="field 'note' is not declared any more"),
    ):
        older.run()
    back = {"value": Narrow, "upgrade": lambda new: Narrow(new["n"])}
    with program(tmp_path / "log", handle=count, **back) as older:
        older.run(("b", 4))
        assert older.content() == {"a": Narrow(2), "b": Narrow(4)}
    with program(tmp_path / "log", value=Narrow, handle=count) as older:
        older.run(("a", 5))
        assert older.content() == {"a": Narrow(5), "b": Narrow(4)}


def count(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = Narrow(record.value)


def count_with_note(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = Wider(record.value, "new")
