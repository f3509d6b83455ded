"""A store that cannot decode its content stops its task, and no record is skipped for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.changelog.clock import ManualClock
from strandline.changelog.embedded.checking.findings import Severity
from strandline.changelog.embedded.checking.folder import check_log
from strandline.changelog.local_storage import LocalStorage
from strandline.framework.testing import TestDriver
from strandline.statestore import StoreSpec, open_store
from strandline.statestore.checking.stores import check_stores
from strandline.statestore.keys import key_codec
from tests.declarations.programs import program

pytestmark = pytest.mark.damages

CHANGELOG = "shop-totals-changelog"


def read(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = store.get(record.key, 0) + 1


def read_all(store: Any, record: sl.Record[str, Any]) -> None:
    dict(store.all())


def read_some(store: Any, record: sl.Record[str, Any]) -> None:
    store.get_many([record.key])


def put_if_absent(store: Any, record: sl.Record[str, Any]) -> None:
    store.put_if_absent(record.key, 1)


def spoil(log: Path, key: bytes, value: bytes) -> None:
    """Write to the changelog directly."""
    with program(log, value=int) as made, made.app.producer() as producer:
        for partition in range(2):
            producer.send(CHANGELOG, value, key=key, partition=partition).result(10)


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead_letter"])
@pytest.mark.parametrize("handle", [read, read_all, read_some, put_if_absent])
def test_an_undecodable_store_stops_its_task_under_every_error_policy(
    tmp_path: Path, on_error: str, handle: Callable[..., None]
) -> None:
    with program(tmp_path, value=int, handle=read) as before:
        before.run(("york", "a"))
    spoil(tmp_path, key_codec(str).encode("york"), b"\xa1x")
    with program(tmp_path, value=int, handle=handle, on_error=on_error) as made:
        with pytest.raises(sl.CorruptLog, match="store 'totals'.*cannot be decoded as int"):
            made.run(("york", "b"))
        offsets = made.app.broker().committed("shop")
        assert sum(offset.offset for offset in offsets.values()) <= 2, "it is still to be handled"


def read_and_go_on(store: Any, record: sl.Record[str, Any]) -> None:
    try:
        store[record.key] += 1
    except sl.StrandlineError:
        store[record.key] = 1


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_handler_that_catches_the_error_does_not_hide_it(tmp_path: Path, on_error: str) -> None:
    with program(tmp_path, value=int, handle=read) as before:
        before.run(("york", "a"))
    spoil(tmp_path, key_codec(str).encode("york"), b"\xa1x")
    for _ in range(2):
        with program(tmp_path, value=int, handle=read_and_go_on, on_error=on_error) as made:
            with pytest.raises(sl.CorruptLog, match="store 'totals'.*cannot be decoded as int"):
                made.run(("york", "b"))
            with pytest.raises(
                sl.CorruptLog, match="store 'shop/totals': a stored value cannot be decoded"
            ):
                made.app.query(made.store, partition=0).to_dict()


class Moody:
    """A serde that raises any given error."""

    error: Exception | None = None

    def dumps(self, value: Any) -> bytes:
        return str(value).encode()

    def loads(self, data: bytes) -> Any:
        if self.error is not None:
            raise self.error
        return data.decode()


@pytest.mark.parametrize("error", [KeyError("x"), UnicodeError("x"), sl.InvalidRecord("x")])
def test_any_error_of_a_serde_while_reading_is_the_stores_fault(error: Exception) -> None:
    serde = Moody()
    spec: StoreSpec[str, Any] = StoreSpec("totals", key=str, value=serde, engine="memory")
    store = open_store(spec, clock=ManualClock())
    store["york"] = "a"
    store.drain()
    store.committed(1)
    store.checkpoint()
    store._clear_cache()
    serde.error = error
    with pytest.raises(sl.CorruptLog, match="store 'totals'"):
        store["york"]
    with pytest.raises(sl.CorruptLog, match="store 'totals'"):
        list(store.all())


def test_a_value_that_cannot_be_put_is_the_records_fault() -> None:
    app = sl.App("shop")
    sales = app.topic("sales", key=str, value=Any)
    totals = app.store("totals", key=str, value=int)

    @app.task(sales, stores=[totals], on_error="skip")
    def tally(record: sl.Record[str, Any]) -> None:
        totals[record.key] = record.value

    with TestDriver(app) as driver:
        driver.run([("york", "text"), ("hull", 2)])
        assert driver.store(totals) == {"hull": 2}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (key_codec(int).encode(7), b"\x01", r"a key that is no str: 7"),
        (key_codec(str).encode("york"), b"\xa1x", r"under the key 'york': it is 'x', not int"),
        (key_codec(str).encode("york"), b"\xc4", r"under the key 'york'"),
    ],
)
def test_check_reads_by_the_declaration(
    tmp_path: Path, key: bytes, value: bytes, said: str
) -> None:
    with program(tmp_path, value=int, handle=read) as before:
        before.run(("hull", "a"))
    spoil(tmp_path, key, value)
    checked = check_log(LocalStorage(tmp_path))
    check_stores(tmp_path, checked)
    found = [one for one in checked.report.findings if one.kind == "declaration"]
    assert len(found) == 2, "one in each partition"
    assert {one.severity for one in found} == {Severity.DAMAGE}
    for one in found:
        assert re.search(said, one.what), one.what
        assert one.partition is not None
        assert one.partition.topic == CHANGELOG
        assert "reset" in one.way_out
