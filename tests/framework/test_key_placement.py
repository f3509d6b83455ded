"""Records in other partitions than those of their keys are named, once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.client.producer import Producer


@dataclass(frozen=True)
class Sale:
    shop: str
    amount: float


class Counting:
    """An app with a typed topic in four partitions, whose task has state or not."""

    def __init__(self, folder: Path, *, stores: bool) -> None:
        self.app = sl.App("app", log=folder / "log")
        self.sales = self.app.topic("sales", key="shop", value=Sale, partitions=4)
        counts = self.app.counter("counts")

        @self.app.task(self.sales, stores=[counts] if stores else [], name="count")
        def count(record: sl.Record[str, Sale]) -> None:
            if stores:
                counts.add(record.value.shop, 1)

    def run(self, *keys: str | None, partition: int | None = None) -> None:
        self.app.prepare()
        with Producer(self.app.broker()) as producer:
            for key in keys:
                value = {"shop": key or "york", "amount": 1.0}
                producer.send("sales", value, key, partition=partition)
        self.app.run(until="idle", progress=False)


SHOPS = [f"shop-{n}" for n in range(20)]


def test_keys_in_their_partitions_are_not_mentioned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Counting(tmp_path, stores=True).run(*SHOPS)
    assert "State is kept by partition" not in caplog.text


@pytest.mark.parametrize(
    ("keys", "partition", "says"),
    [
        (SHOPS, 2, "which belongs into partition"),
        ([None, None], 2, "has no key, but the topic is declared with key='shop'"),
    ],
)
def test_records_elsewhere_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: Any, partition: int, says: str
) -> None:
    counting = Counting(tmp_path, stores=True)
    with counting.app:
        counting.run(*keys, partition=partition)
        assert caplog.text.count("State is kept by partition") == 1
    assert says in caplog.text
    assert "of partition 2" in caplog.text


def test_a_task_without_state_may_have_any_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Counting(tmp_path, stores=False).run(*SHOPS, partition=2)
    assert "State is kept by partition" not in caplog.text
