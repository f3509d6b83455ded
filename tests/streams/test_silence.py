"""Windows after silences of partitions: results are those of a model, after each step of an input."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.changelog.client.partitioner import partition_for
from strandline.framework.testing import TestDriver
from tests.streams.oracle import NEVER, Event

PARTITIONS = 2
USERS = [next(f"u{n}" for n in range(99) if partition_for(b"u%d" % n, 2) == at) for at in range(2)]
"""A user in each partition."""
BASE = 1_700_000_000_000
SIZE, GRACE, SECOND = 10_000, 3_000, 1_000
IDLE_S, CLOSE_S = 3, 6
LOOK_S = 2
"""Greatest time between two looks for idle partitions."""

Step = tuple[str, int, list[int]]
"""Kind of the step, its partition or seconds, and the times of records in seconds."""
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("records"),
            st.integers(0, PARTITIONS - 1),
            st.lists(st.integers(0, 40), min_size=1, max_size=4),
        ),
        st.tuples(st.just("silence"), st.sampled_from([1, 5, 12]), st.just([])),
        st.tuples(st.just("crash"), st.just(0), st.just([])),
        st.tuples(st.just("watermark"), st.integers(0, 40), st.just([])),
    ),
    min_size=1,
    max_size=7,
)


class Model:
    """Tumbling windows of one group, whose records come from several partitions."""

    def __init__(self, *, idles: bool, closes: bool) -> None:
        self._idle_s = IDLE_S if idles else None
        self._close_s = CLOSE_S if closes else None
        self._marks = [NEVER] * PARTITIONS
        self._silences = [0] * PARTITIONS
        self._idle: set[int] = set()
        self._woken: set[int] = set()
        """Idle partitions that are waited for again, because others have records."""
        self._reached = NEVER
        self._open = Counter[int]()
        self.results = Counter[tuple[int, int]]()
        """Start and number of records of each window that was closed."""
        self.late = 0

    def record(self, partition: int, at: int) -> None:
        start = at // SIZE * SIZE
        if start + SIZE + GRACE > max(self._marks[partition], self._reached):
            self._open[start] += 1
        else:
            self.late += 1
        if len(self._idle) == PARTITIONS:  # each has its idle time again, to show what it has
            self._woken, self._idle = self._idle, set()
            self._silences = [0] * PARTITIONS
        self._woken.discard(partition)
        self._idle.discard(partition)
        self._silences[partition] = 0
        self.raise_to(at, [partition])

    def advance(self, watermark: int) -> None:
        """Raise all partitions; each says again that it is idle, if it is."""
        self._idle, self._woken = self._idle | self._woken, set()
        self.raise_to(watermark, range(PARTITIONS))

    def raise_to(self, watermark: int, partitions: Any) -> None:
        for partition in partitions:
            self._marks[partition] = max(self._marks[partition], watermark)
        active = [m for p, m in enumerate(self._marks) if p not in self._idle]
        self._close(min(active) if active else max(self._marks))

    def tick(self) -> bool:
        """Let a second pass. Return False if it is not known who is idle now."""
        self._silences = [silence + 1 for silence in self._silences]
        # It takes a look to notice a record, another one after an internal topic, and one more.
        after, least = 3 * LOOK_S, min(self._silences)
        if self._idle_s is not None:
            noticed = self._idle_s + after
            self._idle |= {p for p, s in enumerate(self._silences) if s >= noticed}
            self.raise_to(NEVER, [])
        if self._close_s is not None and least >= self._close_s + after and self._open:
            self._close(max(self._open) + SIZE + GRACE)
        limits = [limit for limit in (self._idle_s, self._close_s) if limit is not None]
        return not any(limit <= s < limit + after for limit in limits for s in self._silences)

    def crash(self) -> None:
        self._silences = [0] * PARTITIONS

    def end(self) -> None:
        self._close(max(self._open, default=NEVER) + SIZE + GRACE)

    def _close(self, watermark: int) -> None:
        self._reached = max(self._reached, watermark)
        for start in [s for s in self._open if s + SIZE + GRACE <= self._reached]:
            self.results[start, self._open.pop(start)] += 1


@settings(max_examples=10, deadline=None)
@given(steps=STEPS, idles=st.booleans(), closes=st.booleans())
@example(  # the second record closes no window, and comes after a silence
    steps=[("records", 0, [5]), ("silence", 12, []), ("records", 0, [11]), ("silence", 5, [])],
    idles=False,
    closes=True,
)
@example(  # after a silence of all, a partition that may have records is waited for
    steps=[("silence", 5, []), ("records", 0, [0, 13]), ("silence", 12, [])],
    idles=True,
    closes=False,
)
def test_partitions_that_are_silent_close_windows_as_documented(
    steps: list[Step], idles: bool, closes: bool
) -> None:
    app = sl.App("app")
    topic = app.topic("events", value=Event, key="user", timestamp="at", partitions=PARTITIONS)
    late = app.topic("late", value=Event, key="user", timestamp="at")
    idle, close_idle = f"{IDLE_S}s" if idles else None, f"{CLOSE_S}s" if closes else None
    stream = app.stream(topic, idle=idle, close_idle=close_idle, late=late)
    windows = stream.group_by("kind").window(sl.tumbling(SIZE, grace=GRACE))
    out = windows.agg(n=sl.count(), name="agg").to("out")
    model, counted = Model(idles=idles, closes=closes), 0
    with TestDriver(app, now_ms=BASE) as driver:
        for kind, number, times in steps:
            if kind == "records":
                ats = [BASE + time * SECOND for time in times]
                driver.run([Event(USERS[number], "x", None, at) for at in ats])
                for at in ats:
                    model.record(number, at)
            elif kind == "silence":
                silent, is_known = 0, True
                while silent < number or not is_known:
                    driver.advance(SECOND)
                    silent, is_known = silent + 1, model.tick()
            elif kind == "watermark":
                driver.advance_watermark(BASE + number * SECOND)
                model.advance(BASE + number * SECOND)
            else:
                driver.crash()
                model.crash()
            assert results(driver, out) == model.results
        driver.end()
        model.end()
        assert results(driver, out) == model.results
        counted = sum(n * times for (_, n), times in model.results.items())
    assert counted + model.late == sum(len(times) for _, _, times in steps)


def results(driver: TestDriver, topic: Any) -> Counter[tuple[int, int]]:
    rows = [record.value for record in driver.output(topic)]
    return Counter((round(r["window_start"].timestamp() * 1_000), r["n"]) for r in rows)
