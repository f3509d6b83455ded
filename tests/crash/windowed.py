"""A stream with windows on the storage twin, and its expected results.

Clicks are grouped by a column that is not their key, so rows go through an internal topic. Each
window is closed by the watermarks of all partitions of the input, and its result is sent once. Late
clicks go to a topic of their own. `fold` computes both in plain Python, a record at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import strandline as sl
from strandline.changelog.clock import Clock
from strandline.changelog.embedded.owner import Owner
from strandline.changelog.records import TopicPartition
from strandline.framework.container.folders import StoreFolders
from strandline.framework.container.running import worker_on
from strandline.framework.decoding import decode
from strandline.framework.export import committed_batches
from strandline.framework.options import Options
from tests.crash.oracle import check, records
from tests.crash.tally import FOREVER_MS, SMALL, number_of

APP = "clicks-app"
PARTITIONS = 3
CLICKS = tuple(TopicPartition("clicks", number) for number in range(PARTITIONS))
KINDS = 2
SIZE_MS, GRACE_MS = 40, 10


class WindowedApp(NamedTuple):
    """The app, and its parts."""

    app: sl.App
    clicks: Any
    sums: Any
    late: Any


def windowed() -> WindowedApp:
    app = sl.App(APP)
    clicks = app.topic("clicks", value=int, partitions=PARTITIONS, config=SMALL)
    late = app.topic("late", value=int, partitions=1, config=SMALL)
    sums = (
        app.stream(clicks, late=late, idle=None)
        .with_columns(kind=sl.col("value") % KINDS)
        .group_by("kind")
        .window(sl.tumbling(SIZE_MS, grace=GRACE_MS))
        .agg(n=sl.count(), total=sl.sum("value"), name="sums")
        .to("out", partitions=2)
    )
    return WindowedApp(app, clicks, sums, late)


# Expected results ---------------------------------------------------------------------


class Click(NamedTuple):
    """A record of the input."""

    value: int
    at_ms: int


Window = tuple[int, int]
"""Kind, and start in ms."""
Figures = tuple[int, int]
"""Number of clicks, and the sum of their values."""


@dataclass
class Expected:
    """Results of some input."""

    windows: dict[Window, Figures] = field(default_factory=dict)
    late: Counter[int] = field(default_factory=Counter)
    """Values of late clicks."""
    watermark: int = 0
    """Least watermark of the partitions, in ms."""

    def is_closed(self, window: Window) -> bool:
        return window[1] + SIZE_MS + GRACE_MS <= self.watermark

    def closed(self) -> dict[Window, Figures]:
        return {window: f for window, f in self.windows.items() if self.is_closed(window)}

    def open(self) -> dict[Window, Figures]:
        return {window: f for window, f in self.windows.items() if not self.is_closed(window)}


def fold(inputs: Iterable[Sequence[Click]]) -> Expected:
    """Return the expected results for these partitions."""
    expected = Expected()
    watermarks = []
    for clicks in inputs:
        watermark = 0
        for value, at_ms in clicks:
            window = value % KINDS, at_ms // SIZE_MS * SIZE_MS
            if window[1] + SIZE_MS + GRACE_MS <= watermark:
                expected.late[value] += 1
            else:
                n, total = expected.windows.get(window, (0, 0))
                expected.windows[window] = n + 1, total + value
            watermark = max(watermark, at_ms)
        watermarks.append(watermark)
    expected.watermark = min(watermarks)
    return expected


# The stream on a log ------------------------------------------------------------------


class WindowedRunner:
    """The stream at work on an open log. It raises the log's errors."""

    def __init__(self, owner: Owner, clock: Clock, folders: StoreFolders) -> None:
        self.parts = windowed()
        self._owner = owner
        # Commits are called explicitly, and stores are restored one after another.
        options = Options(commit_interval_ms=FOREVER_MS, restore_threads=1)
        self._worker = worker_on(
            owner, self.parts.app.declared, clock, options, folders, alone=True
        )

    def start(self) -> None:
        """Start the worker: fence the previous one, restore the stores."""
        self._worker.start()

    def work(self) -> None:
        """Handle and commit all input. What is committed to the internal topic is input too."""
        while self._worker.cycle():
            self._worker.commit()
        self._worker.commit()

    def abandon(self) -> None:
        self._worker.abandon()

    def judge(self, *, finished: bool) -> None:
        """Compare results and state with those expected for the committed input.

        `finished` means that all input was handled.
        """
        expected = fold([list(self._input(tp, finished=finished)) for tp in CLICKS])
        sent, late, held = self._sent(), self._late(), self._held()
        for result, times in sent.items():
            check("outputs", times == 1, f"{result} was sent {times} times")
        results = {(kind, start): (n, total) for kind, start, n, total in sent}
        check("outputs", len(results) == len(sent), f"a window has two results: {sent}")
        check("outputs", late == expected.late, f"late were {late}, not {expected.late}")
        check("state", not results.keys() & held.keys(), "a window that was sent is still held")
        if finished:
            closed, opened = expected.closed(), expected.open()
            check("outputs", results == closed, f"sent was {results}, not {closed}")
            check("state", held == opened, f"windows {held} are open, not {opened}")
        wrong = {w: f for w, f in results.items() if expected.windows.get(w) != f}
        check("outputs", not wrong, f"sent was {wrong}, not as in {expected.windows}")

    def _input(self, tp: TopicPartition, *, finished: bool) -> Iterator[Click]:
        """Yield the records of a partition, up to the committed offset unless `finished`."""
        position = self._owner.committed(APP).get(tp)
        end = position.offset if position is not None else 0
        for record in records(self._owner, tp):
            if finished or record.offset < end:
                yield Click(number_of(record.value), record.timestamp)

    def _sent(self) -> Counter[tuple[int, int, int, int]]:
        """Return the results that were sent: kind, start and figures, each as often as it was."""
        return Counter(
            (row["kind"], _ms(row["window_start"]), row["n"], row["total"])
            for row in self._values(self.parts.sums)
        )

    def _late(self) -> Counter[int]:
        return Counter(self._values(self.parts.late))

    def _values(self, topic: Any) -> Iterator[Any]:
        """Yield the committed values of a topic."""
        for batch in committed_batches(self._owner, topic.name):
            for chunk in decode(topic, batch, tombstones=False):
                yield from (record.value for record in chunk.records)

    def _held(self) -> dict[Window, Figures]:
        """Return the open windows in the stores."""
        store = self.parts.app.declared.stores["sums"]
        return {
            (kind, start): (state.n, state.total)
            for instance in self._worker.instances
            if store in instance.spec.stores
            for (start, kind), state in (
                (key, store.shown(value))
                for key, value in instance.stores[instance.spec.stores.index(store)].all()
            )
        }


def _ms(when: Any) -> int:
    return round(when.timestamp() * 1_000)
