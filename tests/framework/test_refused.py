"""A refusal by the log at the commit is the fault of one record, which on_error treats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.errors import SchemaMismatch
from strandline.changelog.records import TopicPartition
from strandline.framework.options import Guarantee
from strandline.framework.testing import CRASH, TestDriver

LIMIT = 2_000
SMALL = {"max.message.bytes": str(LIMIT)}
LARGE = b"x" * (2 * LIMIT)
A_CENTURY_MS = 100 * 365 * 24 * 3_600_000
GUARANTEES: list[Guarantee] = ["exactly_once", "at_least_once", "at_most_once"]


class Bad:
    """An app whose handler does something that the log refuses for each negative value."""

    def __init__(self, what: str, on_error: Any, *, batch: bool = False, **options: Any) -> None:
        self.app = app = sl.App("app", **options)
        self.words = app.topic("words", key=str, value=int, partitions=2)
        self.out = app.topic("out", key=str, value=bytes, config=SMALL)
        self.compacted = app.topic(
            "compacted", key=str, value=bytes, config={"cleanup.policy": "compact"}
        )
        self.seen = app.store("seen", key=str, value=int, default=0)
        self.blobs = app.store("blobs", key=str, value=bytes)
        bad = getattr(self, what)

        def count(record: sl.Record[str, int]) -> None:
            self.seen[record.key] += 1
            self.out.send(record.key, b"%d" % record.value)
            if record.value < 0:
                bad(record)

        def count_all(given: sl.Batch) -> None:
            for record in given.records():
                count(record)

        stores = [self.seen, self.blobs]
        declare = app.task(self.words, stores=stores, on_error=on_error, name="t", batch=batch)
        declare(count_all if batch else count)

    def too_large(self, record: Any) -> None:
        self.out.send(record.key, LARGE)

    def without_a_key(self, record: Any) -> None:
        self.compacted.send(None, b"x")

    def before_1970(self, record: Any) -> None:
        self.out.send("k", b"x", timestamp=-1)

    def too_far_ahead(self, record: Any) -> None:
        self.out.send("k", b"x", timestamp=record.timestamp + A_CENTURY_MS)

    def a_large_store_value(self, record: Any) -> None:
        self.blobs[record.key] = LARGE

    def a_header_that_is_no_text(self, record: Any) -> None:
        self.out.send("k", b"x", headers=[("\udc80", b"")])

    def driver(self) -> TestDriver:
        driver = TestDriver(self.app)
        driver.owner.alter_topic("app-blobs-changelog", SMALL)
        driver.owner.alter_topic("out", {"message.timestamp.after.max.ms": "3600000"})
        return driver

    def sent(self, driver: TestDriver) -> list[int]:
        return sorted(int(record.value) for record in driver.output(self.out))


BOTH = pytest.mark.parametrize("batch", [False, True], ids=["records", "batches"])
WHAT = [name for name in vars(Bad) if not name.startswith("_") and name not in ("driver", "sent")]


def given(count: int, bad: set[int]) -> list[tuple[str, int]]:
    return [(f"k{n % 7}", -n if n in bad else n) for n in range(1, count + 1)]


@BOTH
@pytest.mark.parametrize("what", WHAT)
def test_a_refused_record_is_skipped(what: str, batch: bool) -> None:
    bad = Bad(what, "skip", batch=batch)
    driver = bad.driver().run(given(100, {37}))
    assert bad.sent(driver) == [n for n in range(1, 101) if n != 37]
    assert sum(driver.store(bad.seen).values()) == 99
    assert driver.store(bad.blobs) == {}


@BOTH
@pytest.mark.parametrize("what", WHAT)
def test_a_refused_record_becomes_a_dead_letter(what: str, batch: bool) -> None:
    bad = Bad(what, "dead_letter", batch=batch)
    driver = bad.driver().run(given(100, {37, 90}))
    assert bad.sent(driver) == [n for n in range(1, 101) if n not in (37, 90)]
    letters = driver.output(bad.app.declared.topics["app-t-dead-letter"])
    headers = [dict(letter.headers) for letter in letters]
    assert [h["origin.topic"] for h in headers] == [b"words", b"words"]
    assert all(h["error.type"] in (b"InvalidRecord", b"RecordTooLarge") for h in headers)
    assert all(letter.value is not None for letter in letters)


@BOTH
@pytest.mark.parametrize("what", WHAT)
def test_a_task_fails_at_the_refused_record_and_names_it(what: str, batch: bool) -> None:
    bad = Bad(what, "fail", batch=batch)
    driver = bad.driver()
    with pytest.raises(sl.TaskFailed, match=r"failed on record words-\d @ \d+ with key 'k2'"):
        driver.run(given(60, {37}))
    assert set(range(1, 61)) - set(bad.sent(driver)) >= {37}
    assert set(range(1, 37)) <= set(bad.sent(driver))


@BOTH
@pytest.mark.parametrize("what", ["too_large", "a_large_store_value"])
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_the_refused_record_is_found_with_every_guarantee(
    what: str, guarantee: Guarantee, batch: bool
) -> None:
    bad = Bad(what, "skip", batch=batch, processing_guarantee=guarantee)
    driver = bad.driver().run(given(30, {5, 6, 29}))
    assert bad.sent(driver) == [n for n in range(1, 31) if n not in (5, 6, 29)]
    assert sum(driver.store(bad.seen).values()) == 27


@BOTH
def test_many_refused_records_are_found_one_after_another(batch: bool) -> None:
    bad = Bad("too_large", "dead_letter", batch=batch)
    driver = bad.driver().run(given(400, set(range(1, 401))))
    assert bad.sent(driver) == []
    assert len(driver.output(bad.app.declared.topics["app-t-dead-letter"])) == 400


@BOTH
def test_a_crash_during_the_search_changes_nothing(batch: bool) -> None:
    bad = Bad("without_a_key", "skip", batch=batch, commit_records=10)
    rows = given(40, {7, 31})
    driver = bad.driver().run([*rows[:20], CRASH, *rows[20:25], CRASH, *rows[25:]])
    assert bad.sent(driver) == [n for n in range(1, 41) if n not in (7, 31)]


@pytest.mark.parametrize("is_async", [False, True])
def test_refused_output_of_timers_windows_and_init_is_found_too(is_async: bool) -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=int, partitions=2)
    out = app.topic("out", key=str, value=bytes, config=SMALL)

    class Plain:
        def init(self, context: sl.TaskContext) -> None:
            self.partition = context.partition
            out.send(None, LARGE if context.partition else b"init")

        def process(self, record: sl.Record[str, int]) -> None:
            sl.set_timer(f"s{record.value}", record.timestamp + 10)
            sl.set_timer(f"w{record.value}", 1_000_010, clock="wall")

        def window(self) -> None:
            driver.clock.advance(1)  # the time differs when it is repeated
            out.send(None, LARGE if self.partition else b"window")

        def on_timer(self, name: str) -> None:
            out.send(None, LARGE if name.endswith("3") else name.encode())

    class Async(Plain):
        async def process(self, record: sl.Record[str, int]) -> None:  # type: ignore[override]
            Plain.process(self, record)

    app.task(words, on_error="dead_letter", window_ms=5, name="t")(Async if is_async else Plain)
    driver = TestDriver(app)
    driver.run([("a", n, 1_000_000 + n) for n in range(6)])
    driver.run([("a", 9, 1_000_100)]).advance(10)
    sent = [record.value for record in driver.output(out)]
    assert sent.count(b"init") == 1
    assert sent.count(b"window") == 1
    timers = sorted(value for value in sent if value not in (b"init", b"window"))
    assert timers == [b"s0", b"s1", b"s2", b"s4", b"s5", b"w0", b"w1", b"w2", b"w4", b"w5", b"w9"]
    letters = driver.output(app.declared.topics["app-t-dead-letter"])
    assert len(letters) == 4
    assert {dict(letter.headers)["error.type"] for letter in letters} == {b"RecordTooLarge"}


# Dead letters that are refused themselves ----------------------------------------------


class Verbose:
    """An app whose handler raises with a long message, and a dead-letter topic with a limit."""

    def __init__(self, limit: int, size: int, headers: Any = (), key: str = "k") -> None:
        self.app = app = sl.App("app")
        words = app.topic("words", key=str, value=bytes)

        @app.task(words, on_error="dead_letter", name="t")
        def fail(record: sl.Record[str, bytes]) -> None:
            if len(record.value) > 1:
                raise ValueError("y" * 1_000_000)

        self.driver = TestDriver(app)
        self.driver.owner.alter_topic("app-t-dead-letter", {"max.message.bytes": str(limit)})
        before = sl.App("before", log=self.driver.owner)
        with before.producer() as producer:
            for value in (b"1", b"x" * size, b"2"):
                producer.send("words", value, key, headers=headers)

    def letter(self) -> tuple[Any, dict[str, bytes]]:
        [letter] = self.driver.settle().output(self.app.declared.topics["app-t-dead-letter"])
        return letter, dict(letter.headers)


def test_messages_of_dead_letters_have_a_largest_length() -> None:
    _, headers = Verbose(1 << 20, 10).letter()
    assert len(headers["error.message"].decode()) == 2_000
    assert "error.left_out" not in headers


def test_a_refused_dead_letter_is_sent_without_its_traceback() -> None:
    letter, headers = Verbose(5_000, 2_500).letter()
    assert len(letter.value) == 2_500
    assert headers["error.left_out"] == b"traceback"
    assert "error.traceback" not in headers
    assert headers["error.type"] == b"ValueError"
    assert headers["error.message"].startswith(b"yyy")


def test_a_dead_letter_refused_again_is_sent_without_its_value() -> None:
    letter, headers = Verbose(5_000, 50_000, [("own", b"z" * 9_000)]).letter()
    assert letter.value is None
    assert letter.key == b"k"
    assert headers["error.left_out"] == b"traceback, value, headers"
    assert (headers["origin.topic"], headers["origin.offset"]) == (b"words", b"1")
    assert "own" not in headers


def test_a_task_fails_at_the_record_if_no_dead_letter_is_accepted() -> None:
    verbose = Verbose(100, 50_000)
    with pytest.raises(sl.TaskFailed, match=r"record words-0 @ 1 .*max\.message\.bytes = 100"):
        verbose.letter()
    assert verbose.driver.owner.committed("app")[TopicPartition("words", 0)].offset == 1


def test_a_dead_letter_topic_has_room_for_every_record_of_the_input() -> None:
    app = sl.App("app")
    words = app.topic("words", key=str, value=bytes, config={"max.message.bytes": "5000000"})

    @app.task(words, on_error="dead_letter", name="t")
    def fail(record: sl.Record[str, bytes]) -> None:
        raise ValueError

    driver = TestDriver(app).run([("k", b"x" * 4_999_000)])
    [letter] = driver.output(app.declared.topics["app-t-dead-letter"])
    assert len(letter.value) == 4_999_000
    assert "error.left_out" not in dict(letter.headers)


# A whole run --------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Any) -> Iterator[Bad]:
    bad = Bad("too_large", "skip", log=tmp_path / "log")
    with bad.app:
        yield bad


def test_a_run_with_a_count_handles_that_many_records(running: Bad) -> None:
    running.words.append(given(50, {50}))
    assert running.app.run(count=50, progress=False) == 50
    assert running.app.query(running.seen).to_dict()
    assert len(running.out.to_polars()) == 49


def test_a_schema_that_the_topic_does_not_have_is_no_records_fault() -> None:
    bad = Bad("too_large", "skip")
    driver = bad.driver()

    def refused(*_: Any) -> None:
        raise SchemaMismatch("another schema")

    driver.worker._session.commit = refused  # type: ignore[method-assign]
    with pytest.raises(SchemaMismatch, match="another schema"):
        driver.run(given(3, set()))
