"""Two stages with state on both. Each output can be checked on its own.

    words ── tally: figures per word ──▶ figures
      ├──── repartitioned by the word's first letter ── letters: figures per letter ──▶ letters
      └──── if requested: a stream of windows per letter ──▶ windows, late

Each change of a figure is sent, so a record that was lost, handled twice, or handled on a state
that lacks another one shows in the outputs.

    python -m tests.workers.pipeline LOG STATE PREFIX      runs a worker until SIGTERM
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import strandline as sl
from strandline.changelog.location import is_kafka
from strandline.framework.decoding import decode
from strandline.framework.export import committed_batches

PARTITIONS = 4
WINDOW_MS, GRACE_MS = 1_000, 500
RECENT = 3
"""Number of values kept per word, in the store of recent values."""
QUERY_DEADLINE_S = 60.0
"""Maximum seconds for a partition to be taken up by another worker, on a busy machine too."""


@dataclass(frozen=True)
class Figures:
    """Figures of all values so far."""

    n: int = 0
    total: int = 0
    smallest: int = 2**62
    largest: int = -(2**62)

    def add(self, value: int) -> Figures:
        return Figures(
            self.n + 1,
            self.total + value,
            min(self.smallest, value),
            max(self.largest, value),
        )


@dataclass
class Pipeline:
    """The app, and its handles."""

    app: sl.App
    words: sl.Topic[str, int]
    figures: sl.Topic[str, Figures]
    letters: sl.Topic[str, Figures]
    per_word: sl.Store[str, Figures]
    per_letter: sl.Store[str, Figures]
    recent: sl.Store[str, int] | None
    """Last values of each word, by word and number, as "a1/17". Each new one deletes an old one."""
    windows: sl.Topic[Any, Any] | None
    """Final results of windows per letter."""
    late: sl.Topic[str, int] | None
    """Words that came after their windows were closed."""

    @property
    def inputs(self) -> list[str]:
        """Topics that its tasks read."""
        return [self.words.name, f"{self.app.name}-letter-repartition"]


def pipeline(
    log: Any,
    *,
    prefix: str = "",
    recent: bool = False,
    windows: bool = False,
    typed: bool = True,
    **options: Any,
) -> Pipeline:
    """Return the app on a log, with a store of `recent` values and a stream of windows if requested;
    outputs are columns or JSON.

    `prefix` begins its name, and those of its topics.
    """
    app = sl.App(f"{prefix}pipeline", log=log, **options)
    words = app.topic(f"{prefix}words", value=int, partitions=PARTITIONS)
    form: dict[str, Any] = {} if typed else {"serde": "json"}
    figures = app.topic(f"{prefix}figures", value=Figures, partitions=2, **form)
    letters = app.topic(f"{prefix}letters", value=Figures, partitions=2, **form)
    per_word = app.store("per-word", value=Figures, default=Figures())
    per_letter = app.store("per-letter", value=Figures, default=Figures())
    values = app.store("recent", key=str, value=int) if recent else None
    by_letter = app.repartition(words, lambda record: record.key[0], name="letter")

    @app.task(words, stores=[per_word] if values is None else [per_word, values])
    def tally(record: sl.Record[str, int]) -> None:
        per_word[record.key] = now = per_word[record.key].add(record.value)
        figures.send(record.key, now)
        if values is not None:
            values[f"{record.key}/{now.n}"] = record.value
            if now.n > RECENT:
                values.delete(f"{record.key}/{now.n - RECENT}")

    @app.task(by_letter, stores=[per_letter])
    def spell(record: sl.Record[str, int]) -> None:
        per_letter[record.key] = now = per_letter[record.key].add(record.value)
        letters.send(record.key, now)

    made = (app, words, figures, letters, per_word, per_letter, values)
    return Pipeline(*made, *(per_second(app, words) if windows else (None, None)))


def per_second(
    app: sl.App, words: sl.Topic[str, int]
) -> tuple[sl.Topic[Any, Any], sl.Topic[str, int]]:
    """Declare windows of the words' letters. Return the topics of final results and late words."""
    late = app.topic("late", value=int)
    results = (
        app.stream(words, late=late, idle=None)
        .with_columns(letter=sl.col("key").str.head(1))
        .group_by("letter")
        .window(sl.tumbling(WINDOW_MS, grace=GRACE_MS))
        .agg(n=sl.count(), total=sl.sum("value"), name="per-second")
        .to("windows", partitions=2)
    )
    return results, late


def some(count: int, start: int = 0) -> list[tuple[str, int]]:
    """Return `count` words, with the values from `start` on."""
    return [(f"{'abcdefgh'[n % 8]}{n % 40}", n) for n in range(start, start + count)]


def wrong(sent: Mapping[str, list[Figures]], given: Mapping[str, list[int]]) -> list[str]:
    """Return what is wrong with the outputs of one stage, by key: lost, doubled, or wrong figures.

    `given` are the values of each key. Figures depend on the order of the values, which
    repartitioning may change. So each step must add one value, and all of them those given.
    """
    found = []
    for key in sorted({*sent, *given}):
        figures, values = sent.get(key, []), given.get(key, [])
        if [figure.n for figure in figures] != list(range(1, len(values) + 1)):
            numbers = [figure.n for figure in figures]
            found.append(
                f"{key}: {len(values)} values, {len(set(numbers))} different outputs, "
                f"{len(numbers) - len(set(numbers))} doubled"
            )
            continue
        before, added = Figures(), []
        for figure in figures:
            added.append(figure.total - before.total)
            if figure != before.add(added[-1]):
                found.append(f"{key}: {before} and {added[-1]} became {figure}")
            before = figure
        if sorted(added) != sorted(values):
            found.append(f"{key}: added {sorted(added)[:9]}, given {sorted(values)[:9]}")
    return found


def by_key(records: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each key, in order."""
    found = defaultdict(list)
    for key, value in records:
        found[key].append(value)
    return dict(found)


def judge(made: Pipeline, given: Iterable[tuple[str, int]]) -> list[str]:
    """Compare all outputs and both stores with the input. Return what is wrong."""
    records = list(given)
    words = by_key(records)
    letters = by_key((word[0], value) for word, value in records)
    return [
        *wrong(_sent(made.figures), words),
        *wrong(_sent(made.letters), letters),
        *_off(made, made.per_word, words),
        *_off(made, made.per_letter, letters),
    ]


def _sent(topic: sl.Topic[str, Figures]) -> dict[str, list[Figures]]:
    return by_key(
        (record.key, record.value)
        for batch in committed_batches(topic.session.broker(), topic.name)
        for chunk in decode(topic, batch, tombstones=False)
        for record in chunk.records
    )


def _off(
    made: Pipeline, store: sl.Store[str, Figures], given: Mapping[str, list[int]]
) -> list[str]:
    with sl.connect(made.app.broker(), deadline=QUERY_DEADLINE_S) as connection:
        held = connection.store(store).to_dict()
    wanted = {key: _fold(values) for key, values in given.items()}
    return [
        f"{store.name}: {key} is {held.get(key)}, should be {wanted.get(key)}"
        for key in sorted({*held, *wanted})
        if held.get(key) != wanted.get(key)
    ]


def _fold(values: Iterable[int]) -> Figures:
    figures = Figures()
    for value in values:
        figures = figures.add(value)
    return figures


def main() -> None:
    log, state, prefix = sys.argv[1:]
    work(log, "exactly_once", state_dir=state, prefix=prefix)


def work(log: str, guarantee: str, **options: Any) -> None:
    """Run a worker until SIGTERM."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    made = pipeline(
        log,
        commit_interval_ms=20,
        session_timeout_ms=2_000,
        standby_replicas=1,
        processing_guarantee=guarantee,
        typed=not is_kafka(log),
        **options,
    )
    with made.app:
        made.app.run(progress=False)


if __name__ == "__main__":
    main()
