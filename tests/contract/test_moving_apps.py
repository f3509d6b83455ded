"""An app continues after its log was moved: no record is missed, and none counts twice."""

from __future__ import annotations

import datetime as dt
import runpy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

import strandline as sl
from strandline import changelog
from strandline.changelog.moving import MovedLog, MoveReport, Selection, move
from strandline.framework.conversions import Forms
from strandline.framework.positions import translated
from tests.cli.conftest import Command, folder, strandline

__all__ = ["folder", "strandline"]

WORDS = [f"word {n % 7}" for n in range(300)]


class Counting:
    """Counts words, and sends each count, so that a lost or doubled record shows."""

    def __init__(self, name: str, url: str, state: Path) -> None:
        self.url = url
        self.app = sl.App(name, log=url, state_dir=state, commit_interval_ms=20)
        self.words = self.app.topic(f"{name}-words", value=int, partitions=3)
        self.out = self.app.topic(f"{name}-out", value=int, partitions=2)
        self.seen = self.app.store("seen", value=int, default=0)
        self.app.task(self.words, stores=[self.seen], name="count")(self.count)

    def count(self, record: sl.Record[str, int]) -> None:
        self.seen[record.key] += 1
        self.out.send(record.key, self.seen[record.key])

    def take(self, words: Sequence[str], *, count: int | None = None) -> int:
        """Append words, and handle `count` records, or all."""
        self.words.append((word, 1) for word in words)
        until = "idle" if count is None else None
        return self.app.run(until=until, count=count, timeout=60, progress=False)

    def shift(self) -> None:
        """Shift the offsets in the input with an aborted transaction, so that they differ from
        counts."""
        self.app.prepare()
        with changelog.open(self.url) as log:
            producer = log.producer(transactional_id="aborted")
            producer.begin_transaction()
            for partition in range(3):
                producer.send(self.words.name, b"never", partition=partition)
            producer.flush()
            producer.abort_transaction()

    def sent(self) -> dict[str, list[int]]:
        """Return the counts sent for each word, in order."""
        found: dict[str, list[int]] = {}
        with changelog.open(self.url) as log:
            table = log.read(self.out.name)
        for key, value in zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True):
            found.setdefault(key.decode(), []).append(msgspec.msgpack.decode(value))
        return found

    def has_counted(self, words: Sequence[str]) -> bool:
        """Return True if each of these words was counted once, in the outputs and in the store."""
        counts = Counter(words)
        assert self.sent() == {word: list(range(1, n + 1)) for word, n in counts.items()}
        assert self.app.query(self.seen).to_dict() == counts
        return True


@dataclass(frozen=True)
class Sale:
    shop: str
    amount: float
    at: dt.datetime
    note: str | None = None


SALES = [
    Sale(f"shop {n % 3}", n / 4, dt.datetime.fromtimestamp(n + 0.5, dt.UTC)) for n in range(60)
]


def summing(name: str, url: str, state: Path) -> tuple[sl.App, sl.Topic[str, Sale]]:
    """Return an app that adds up typed sales, and sends each sale with the shop's sum in its
    note."""
    app = sl.App(name, log=url, state_dir=state, commit_interval_ms=20)
    sales = app.topic(f"{name}-sales", key="shop", value=Sale, timestamp="at", partitions=2)
    noted = app.topic(f"{name}-noted", key="shop", value=Sale)
    sums = app.store("sums", value=float, default=0.0)

    @app.task(sales, stores=[sums])
    def add(record: sl.Record[str, Sale]) -> None:
        sums[record.key] += record.value.amount
        noted.send(None, replace(record.value, note=f"{sums[record.key]}"))

    return app, sales


@pytest.mark.long
def test_columns_become_json_on_kafka_and_columns_again_in_a_folder(
    kafka: str, name: str, tmp_path: Path
) -> None:
    urls = [str(tmp_path / "log"), kafka, str(tmp_path / "log again")]
    for number, url in enumerate(urls):
        app, sales = summing(name, url, tmp_path / "state")
        if number:
            moved(name, urls[number - 1], url, Forms(app.declared.topics.values()))
        sales.append(SALES[number * 20 : number * 20 + 20])
        app.run(until="idle", timeout=60, progress=False)
        noted = app.declared.topics[f"{name}-noted"].to_polars()
        app.close()
        so_far = [sale.amount for sale in SALES[: number * 20 + 20]]
        assert sorted(noted["amount"].to_list()) == so_far
        expected: dict[str, float] = {}
        for shop, amount, note in noted.select("shop", "amount", "note").iter_rows():
            expected[shop] = expected.get(shop, 0.0) + amount
            assert note == f"{expected[shop]}"
    with changelog.open(urls[2]) as log:
        assert log.topic(f"{name}-sales").schema is not None


STREAMING = """
import os, strandline as sl
app = sl.App(os.environ["APP"], log=os.environ["LOG"], state_dir=os.environ["STATE"])
numbers = app.topic(app.name + "-numbers", value=int)
rests = app.stream(numbers).with_columns(rest=sl.col("value") % 3).group_by("rest")
out = rests.agg(n=sl.count(), name="by-rest").to(app.name + "-out")
"""


@pytest.mark.long
def test_rows_between_two_tasks_of_a_stream_become_columns_again(
    kafka: str,
    name: str,
    tmp_path: Path,
    strandline: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic between them is declared by the stream, not by the module."""
    urls = [str(tmp_path / "log"), kafka, str(tmp_path / "log again")]
    module = tmp_path / "streaming.py"
    module.write_text(STREAMING)
    monkeypatch.setenv("APP", name)
    monkeypatch.setenv("STATE", str(tmp_path / "state"))
    for number, url in enumerate(urls):
        monkeypatch.setenv("LOG", url)
        if number:
            assert strandline("move", urls[number - 1], url, "--app", f"{module}:app").code == 0
        loaded = runpy.run_path(str(module))
        with loaded["app"] as app:
            loaded["numbers"].append([(str(n), n) for n in range(9)])
            app.run(until="idle", timeout=60, progress=False)
            counts = loaded["out"].to_polars().group_by("rest").last()
            assert counts["n"].to_list() == [3 * (number + 1)] * 3


def moved(name: str, source: str, target: str, forms: Forms | None = None) -> MoveReport:
    with changelog.open(source) as here, changelog.open(target) as there:
        topics = [info.name for info in here.topics() if info.name.startswith(f"{name}-")]
        topics = [topic for topic in topics if topic != f"{name}-members"]
        selection = Selection(topics, [name], translated, forms or Forms())
        return move(MovedLog(source, here.broker), MovedLog(target, there.broker), selection)


def test_an_app_continues_on_kafka_and_back_in_a_folder(
    kafka: str, name: str, tmp_path: Path
) -> None:
    """Each time the store files of the previous log are present, and must not be trusted."""
    urls = [str(tmp_path / "log"), kafka, str(tmp_path / "log again")]
    logs = [Counting(name, url, tmp_path / "state") for url in urls]

    first = logs[0]
    first.shift()
    assert 0 < first.take(WORDS[:100], count=60) < 100  # the rest is handled on the other system
    first.app.close()
    report = moved(name, urls[0], urls[1])
    assert [topic.name for topic in report.topics] == [
        f"{name}-{kind}" for kind in ("declarations", "out", "seen-changelog", "words")
    ]

    second = logs[1]
    second.take([])
    assert second.has_counted(WORDS[:100])
    assert second.take(WORDS[100:200], count=50) < 100
    second.app.close()
    moved(name, urls[1], urls[2])

    third = logs[2]
    third.take(WORDS[200:])
    assert third.has_counted(WORDS)
    third.app.close()
