"""A store that is declared differently than it was stored: compatible, or refused without a
change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from tests.declarations.programs import program

WAYS_OUT = r"reset.*another name.*upgrade="


def key_of_length(store: Any, record: sl.Record[str, Any]) -> None:
    store[len(record.key)] = record.value


def test_another_type_of_keys_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    with program(tmp_path, key=str, value=int) as before:
        before.run(("york", 1), ("hull", 2))
    with program(tmp_path, key=int, value=int, handle=key_of_length) as other:
        other.sales.append([("leeds", 3)])
        with pytest.raises(sl.InvalidConfig, match=r"'totals'.*keys.*str.*int.*" + "reset"):
            other.run()
        with pytest.raises(sl.InvalidConfig, match="'totals'"):
            other.content()
    with program(tmp_path, key=str, value=int) as again:
        assert again.content() == {"york": 1, "hull": 2}
        assert again.run() == 1
        assert again.content() == {"york": 1, "hull": 2, "leeds": 3}


def pair_key(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key, record.value] = 1


def triple_key(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key, record.value, "new"] = 1


def test_tuple_keys_with_one_more_element_are_refused(tmp_path: Path) -> None:
    with program(tmp_path, key=tuple[str, int], value=int, handle=pair_key) as before:
        before.run(("york", 1))
    grown = tuple[str, int, str]
    with (
        program(tmp_path, key=grown, value=int, handle=triple_key) as after,
        pytest.raises(sl.InvalidConfig, match=r"keys"),
    ):
        after.run(("york", 2))


def count_up(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = store.get(record.key, 0) + 1


def add_text(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = store.get(record.key, "") + "x"


@pytest.mark.parametrize("on_error", ["skip", "dead_letter", "fail"])
def test_valid_input_is_not_skipped_for_a_store_of_other_values(
    tmp_path: Path, on_error: str
) -> None:
    with program(tmp_path, value=int, handle=count_up) as before:
        before.run(("york", "a"))
    with (
        program(tmp_path, value=str, handle=add_text, on_error=on_error) as after,
        pytest.raises(sl.InvalidConfig, match=WAYS_OUT),
    ):
        after.run(("york", "b"))
    with program(tmp_path, value=int, handle=count_up) as again:
        again.run()
        assert again.content() == {"york": 2}


def test_a_store_that_loses_its_time_to_live_keeps_its_values(tmp_path: Path) -> None:
    with program(tmp_path, value=bytes, ttl_ms=3_600_000) as before:
        before.run(("york", b"a"))
    with program(tmp_path, value=bytes) as after:
        assert after.content() == {"york": b"a"}
        after.run(("hull", b"b"))
        assert after.content() == {"york": b"a", "hull": b"b"}
    with program(tmp_path, value=bytes, ttl_ms=3_600_000) as again:
        again.run(("leeds", b"c"))
        assert again.content() == {"york": b"a", "hull": b"b", "leeds": b"c"}


LOOKS_EXPIRED = b"\xc1" + bytes(8) + b"rest"


def test_a_time_to_live_added_later_takes_no_value_for_an_expired_one(
    tmp_path: Path,
) -> None:
    with program(tmp_path, value=bytes) as before:
        before.run(("york", LOOKS_EXPIRED), ("hull", b"\xc1"))
    with program(tmp_path, value=bytes, ttl_ms=3_600_000) as after:
        after.run(("leeds", LOOKS_EXPIRED))
        expected = {"york": LOOKS_EXPIRED, "hull": b"\xc1", "leeds": LOOKS_EXPIRED}
        assert after.content() == expected
    with program(tmp_path, value=bytes) as again:
        assert again.content() == expected


@dataclass
class Small:
    n: int


@dataclass
class Wide:
    n: int
    worst: float | None = None


@dataclass
class Odd:
    n: str


def small(store: Any, record: sl.Record[str, Any]) -> None:
    store[record.key] = Small(record.value)


def wide(store: Any, record: sl.Record[str, Any]) -> None:
    old = store.get(record.key, None)
    store[record.key] = Wide(record.value, 1.5 if old is None else old.worst)


def test_fields_may_be_added_with_defaults_and_then_the_older_program_is_refused(
    tmp_path: Path,
) -> None:
    with program(tmp_path, value=Small, handle=small) as before:
        before.run(("york", 1))
    with program(tmp_path, value=Wide, handle=wide) as after:
        after.run(("hull", 2))
        assert after.content() == {"york": Wide(1), "hull": Wide(2, 1.5)}
    with (
        program(tmp_path, value=Small, handle=small) as older,
        pytest.raises(sl.InvalidConfig, match=r"field 'worst'"),
    ):
        older.run(("york", 3))
    with program(tmp_path, value=Wide, handle=wide) as again:
        assert again.run() == 1
        assert again.content() == {"york": Wide(3), "hull": Wide(2, 1.5)}


def test_a_field_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    with program(tmp_path, value=Small, handle=small) as before:
        before.run(("york", 1))
    with (
        program(tmp_path, value=Odd) as after,
        pytest.raises(sl.InvalidConfig, match=r"field 'n' is int.*str"),
    ):
        after.run()
