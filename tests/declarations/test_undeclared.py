"""Stores from before declarations are adopted after a look at their content."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.clock import SystemClock
from strandline.statestore.recorded import DeclarationLog
from tests.declarations.programs import program

OLD_LOG = Path(__file__).parent / "stores_without_declarations.tar.xz"
"""Log of version 0.1, from before it recorded declarations: counts, typed values, and values with a
time to live, one of them of bytes that begin like an expiry."""

LONG_MS = 3 * 10**12


@dataclass
class Total:
    n: int


@pytest.fixture
def old_log(tmp_path: Path) -> Path:
    with tarfile.open(OLD_LOG) as packed:
        packed.extractall(tmp_path / "log", filter="data")
    return tmp_path / "log"


class Shop:
    """The program that wrote the old log, or a slightly different one."""

    def __init__(self, log: Path, *, key: Any = str, value: Any = Total) -> None:
        self.app = sl.App("shop", log=str(log))
        self.sales = self.app.topic("sales", key=str, value=Any, partitions=2)
        self.totals: Any = self.app.store("totals", key=key, value=value)
        self.blobs = self.app.store("blobs", key=tuple[str, int], value=bytes, ttl_ms=LONG_MS)
        self.counts = self.app.counter("counts")
        self.later = self.app.store("later", key=str, value=dict, ttl_ms=LONG_MS)

        @self.app.task(
            self.sales, stores=[self.totals, self.blobs, self.counts, self.later], name="tally"
        )
        def tally(record: sl.Record[str, Any]) -> None:
            self.counts.add(record.key)


def test_an_old_log_is_read_as_it_was_written(old_log: Path) -> None:
    shop = Shop(old_log)
    assert shop.app.run(until="idle", progress=False) == 0
    app = shop.app
    assert app.query(shop.totals).to_dict() == {"york": Total(3), "hull": Total(2)}
    assert app.query(shop.counts).to_dict() == {"york": 2, "hull": 1}
    assert app.query(shop.later).to_dict() == {"york": {"v": 3}, "hull": {"v": 2}}
    blobs = {("york", 1): b"\xc1\x01", ("hull", 2): b"\xc1\x02", ("york", 3): b"\xc1\x03"}
    assert app.query(shop.blobs).to_dict() == blobs
    recorded = DeclarationLog(app.broker(), "shop", SystemClock()).read()
    assert {name: one.expiry for name, one in recorded.stores.items()} == {
        "shop-totals-changelog": "marked",
        "shop-counts-changelog": "marked",
        "shop-later-changelog": "marked",
        "shop-blobs-changelog": "always",
    }
    shop.sales.append([("york", 9)])
    assert app.run(until="idle", progress=False) == 1
    assert app.query(shop.counts)["york"] == 3
    assert app.query(shop.blobs).to_dict() == blobs
    app.close()


@pytest.mark.parametrize(("key", "value"), [(int, Total), (str, int), (str, bool)])
def test_a_declaration_that_contradicts_the_content_is_refused(
    old_log: Path, key: Any, value: Any
) -> None:
    shop = Shop(old_log, key=key, value=value)
    with pytest.raises(sl.InvalidConfig, match=r"'totals' is not what is stored.*reset"):
        shop.app.run(until="idle", progress=False)
    with pytest.raises(sl.InvalidConfig, match="'totals'"):
        shop.app.query(shop.totals)
    assert DeclarationLog(shop.app.broker(), "shop", SystemClock()).read().stores == {}
    shop.app.close()


def forget_declarations(log: Path) -> None:
    with program(log, value=int) as made:
        made.app.broker().delete_topic("shop-declarations")


def test_only_current_values_of_a_store_are_compared(tmp_path: Path) -> None:
    """A replaced value of another type is still in the log, but not in the store."""
    with program(tmp_path, value=str) as before:
        before.run(("york", "text"))
    forget_declarations(tmp_path)
    with program(tmp_path, value=int) as after, pytest.raises(sl.InvalidConfig, match="'totals'"):
        after.run()
    with program(tmp_path, value=None) as anything:
        anything.run(("york", 7))
    forget_declarations(tmp_path)
    with program(tmp_path, value=int) as after:
        after.run()
        assert after.content() == {"york": 7}


def test_an_empty_store_accepts_any_declaration(tmp_path: Path) -> None:
    with program(tmp_path, key=str, value=int) as before:
        before.run()
    with program(tmp_path, key=int, value=str) as after:
        after.run()
        assert after.content() == {}
