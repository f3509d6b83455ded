"""Read everything as it is committed, and compare each output with those before it.

Input records have values that are never used twice, so a lost or doubled one shows. The figures of
a key in an output topic must count 1, 2, 3 …, each adding one value. At the end they must be those
of all values of the key.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strandline.changelog.broker import Broker
from strandline.changelog.errors import StrandlineError
from strandline.changelog.records import TopicPartition
from strandline.framework.decoding import decode
from strandline.framework.topic import Topic
from tests.chaos.windows import Windows
from tests.workers.pipeline import RECENT, Figures, Pipeline

EXAMPLES = 10


@dataclass
class Stage:
    """Outputs of one stage."""

    key_of: Callable[[str], str]
    """Function from a word to the key that the stage counts by."""
    given: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))
    """Expected final figures of each key. They do not depend on the order."""
    last: dict[str, Figures] = field(default_factory=lambda: defaultdict(Figures))
    repeated: int = 0
    skipped: int = 0
    off: list[str] = field(default_factory=list)

    def put_in(self, word: str, value: int) -> None:
        key = self.key_of(word)
        self.given[key] = self.given[key].add(value)

    def came_out(self, key: str, now: Figures) -> None:
        before = self.last[key]
        if now.n <= before.n:
            self.repeated += 1
            return
        self.skipped += now.n - before.n - 1
        if now.n == before.n + 1 and now != before.add(now.total - before.total):
            self.off.append(f"{key}: {before} became {now}")
        self.last[key] = now

    @property
    def count(self) -> int:
        """Number of values that have come out."""
        return sum(figures.n for figures in self.last.values())

    @property
    def lost(self) -> int:
        missing = (max(0, wanted.n - self.last[key].n) for key, wanted in self.given.items())
        return self.skipped + sum(missing)

    @property
    def doubled(self) -> int:
        more = (max(0, self.last[key].n - wanted.n) for key, wanted in self.given.items())
        return self.repeated + sum(more)

    def wrong(self) -> list[str]:
        """Return what is wrong besides lost and doubled values."""
        different = [
            f"{key}: {self.last[key]}, should be {wanted}"
            for key, wanted in self.given.items()
            if self.last[key] != wanted
        ]
        unknown = [f"{key} was never given" for key in self.last.keys() - self.given.keys()]
        return [*self.off, *different, *unknown]


class Scribe:
    """Reads on a thread of its own, until it is stopped."""

    def __init__(self, made: Pipeline) -> None:
        self.stages = {"figures": Stage(str), "letters": Stage(lambda word: word[0])}
        self.recent: dict[str, int] = {}
        """Expected content of the store of last values."""
        self.values: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.positions: dict[TopicPartition, int] = {}
        self.windows = Windows()
        assert made.windows is not None
        assert made.late is not None
        self._topics: dict[str, Topic[Any, Any]] = {
            "windows": made.windows,
            "late": made.late,
            "words": made.words,
            "figures": made.figures,
            "letters": made.letters,
        }
        self._broker: Broker = made.app.broker()
        self._stop = threading.Event()
        for topic in self._topics:
            for number in range(self._broker.topic(topic).partitions):
                self.positions[TopicPartition(topic, number)] = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def records(self) -> int:
        """Number of input records seen."""
        return sum(self.values.values())

    def is_at(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(self.positions[tp] >= ends[tp] for tp in self.positions)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _read(self) -> None:
        while not self._stop.is_set():
            try:
                fetched = self._broker.fetch(self.positions, timeout=0.2)
            except StrandlineError:  # no owner for a moment
                self._stop.wait(0.1)
                continue
            for tp, found in fetched.items():
                for batch in found.batches:
                    self._take(tp, batch)
                self.positions[tp] = found.next_offset

    def _take(self, tp: TopicPartition, batch: Any) -> None:
        offset = self.positions[tp] - 1
        for chunk in decode(self._topics[tp.topic], batch, tombstones=True):
            for record in chunk.records:
                if record.offset <= offset:
                    self._note(f"{tp}: offset {record.offset} after {offset}")
                offset = record.offset
                if tp.topic == "windows":
                    self.windows.came_out(record.value)
                elif tp.topic == "late":
                    self.windows.came_late(record.value)
                elif tp.topic == "words":
                    self.windows.put_in(tp, record.key, record.value, record.timestamp)
                    self.values[record.value] += 1
                    for stage in self.stages.values():
                        stage.put_in(record.key, record.value)
                    self._remember(record.key, record.value)
                else:
                    self.stages[tp.topic].came_out(record.key, record.value)

    def _remember(self, word: str, value: int) -> None:
        number = self.stages["figures"].given[word].n
        self.recent[f"{word}/{number}"] = value
        self.recent.pop(f"{word}/{number - RECENT}", None)

    def _note(self, what: str) -> None:
        if len(self.wrong) < EXAMPLES:
            self.wrong.append(what)
