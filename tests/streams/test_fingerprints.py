"""Fingerprints change with what state depends on, and with nothing else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import strandline as sl
from strandline.framework.streams.fingerprints import Fingerprint
from strandline.framework.streams.schemas import Keying
from strandline.statestore.declaration import Declaration, compare, declaration_of
from tests.streams.support import flight_stream, flights, new_app

ROOT = Path(__file__).resolve().parents[2]

Aggregated = Callable[[sl.Stream], object]


def plain(stream: sl.Stream) -> object:
    return (
        stream.group_by("origin")
        .window(sl.tumbling("1h"))
        .agg(n=sl.count(), worst=sl.max("delay"), name="late")
    )


def print_of(declare: Aggregated) -> Fingerprint:
    """Return the fingerprint of the only operator with state."""
    app, stream = flight_stream()
    declare(stream)
    [found] = app.plan().fingerprints()
    return found


def declared(declare: Aggregated) -> Declaration:
    """Return the declaration of the store of the only operator with state."""
    app, stream = flight_stream()
    declare(stream)
    return declaration_of(app.declared.store("late").spec)


def test_a_fingerprint_is_canonical_json_with_a_hash() -> None:
    found = print_of(plain)
    assert found.name == "late"
    assert found.json == (
        b'{"aggregates":{"n":{"columns":[],"kind":"count","result":"int64"},"worst":{"columns":'
        b'[["delay","int64"]],"kind":"max","result":"int64"}},"keys":[["origin","string"]],'
        b'"operator":"aggregate","partitioner":"murmur2","placed_by":"origin, through a repartition '
        b'topic","version":1,"window":{"grace_ms":0,"kind":"tumbling","offset_ms":0,"size":"1h",'
        b'"tz":null}}'
    )
    assert found.sha256 == "719d7fc6d0f0cf8fe7c2930f7b0b825612126565c0e95a2589ef1e0c19e85e64"


PROGRAM = """
from tests.streams.test_fingerprints import plain, print_of
print(print_of(plain).sha256)
"""


@pytest.mark.long
def test_fingerprints_are_the_same_in_each_process() -> None:
    seen = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    assert seen == {print_of(plain).sha256}


SAME: dict[str, Aggregated] = {
    "a filter before": lambda s: plain(s.filter(sl.col("delay") > 15)),
    "a column before": lambda s: plain(s.with_columns(x=1)),
    "a function before": lambda s: plain(s.peek(print)),
    "a merge before": lambda s: plain(s.merge(s)),
    "a topic before": lambda s: plain(s.through("other")),
    "an output after": lambda s: plain(s).to("o", emit="update"),
    "a computed column of the same type": lambda s: plain(
        s.with_columns(delay=sl.col("delay") + 1)
    ),
    "another order of aggregates": lambda s: (
        s.group_by("origin")
        .window(sl.tumbling("60m"))
        .agg(worst=sl.max("delay"), n=sl.count(), name="late")
    ),
    "another name": lambda s: (
        s.group_by("origin", name="other")
        .window(sl.tumbling("1h"))
        .agg(n=sl.count(), worst=sl.max("delay"))
    ),
}


@pytest.mark.parametrize("declare", SAME.values(), ids=SAME)
def test_what_state_does_not_depend_on_does_not_change_it(declare: Aggregated) -> None:
    assert print_of(declare).sha256 == print_of(plain).sha256


CHANGED: dict[str, tuple[Aggregated, str]] = {
    "another key": (
        lambda s: (
            s.group_by("carrier")
            .window(sl.tumbling("1h"))
            .agg(n=sl.count(), worst=sl.max("delay"), name="late")
        ),
        'keys: [["origin","string"]] before, [["carrier","string"]] now',
    ),
    "another type of the key": (
        lambda s: plain(s.with_columns(origin=sl.col("delay"))),
        "its keys are tuple[int, str], and are declared as tuple[int, int]",
    ),
    "another order of keys": (
        lambda s: (
            s.group_by("origin", "carrier")
            .window(sl.tumbling("1h"))
            .agg(n=sl.count(), worst=sl.max("delay"), name="late")
        ),
        "its keys are tuple[int, str], and are declared as tuple[int, str, str]",
    ),
    "another window": (
        lambda s: (
            s.group_by("origin")
            .window(sl.tumbling("1h", grace="1m"))
            .agg(n=sl.count(), worst=sl.max("delay"), name="late")
        ),
        "window.grace_ms: 0 before, 60000 now",
    ),
    "no window": (
        lambda s: s.group_by("origin").agg(n=sl.count(), worst=sl.max("delay"), name="late"),
        "its keys are tuple[int, str], and are declared as str",
    ),
    "another aggregate": (
        lambda s: (
            s.group_by("origin")
            .window(sl.tumbling("1h"))
            .agg(n=sl.count(), worst=sl.min("delay"), name="late")
        ),
        "it keeps n=count(), worst=max(delay), and is declared to keep n=count(), worst=min(delay)",
    ),
    "another column": (
        lambda s: (
            s.group_by("origin")
            .window(sl.tumbling("1h"))
            .agg(n=sl.count("speed"), worst=sl.max("delay"), name="late")
        ),
        "is declared to keep n=count(speed), worst=max(delay)",
    ),
    "another type of a column": (
        lambda s: plain(s.with_columns(delay=sl.col("speed"))),
        'state: [["n","int64"],["worst","int64"]] before, [["n","int64"],["worst","double"]] now',
    ),
    "a removed aggregate": (
        lambda s: s.group_by("origin").window(sl.tumbling("1h")).agg(n=sl.count(), name="late"),
        "it keeps n=count(), worst=max(delay), and is declared to keep n=count(), which",
    ),
    "another operator": (
        lambda s: s.drop_duplicates(on="origin", within="1h", name="late"),
        "it is the state of aggregate, and is declared as that of drop_duplicates",
    ),
}


@pytest.mark.parametrize(("declare", "said"), CHANGED.values(), ids=CHANGED)
def test_what_state_depends_on_changes_it(declare: Aggregated, said: str) -> None:
    assert print_of(declare).sha256 != print_of(plain).sha256
    found = compare(declared(plain), declared(declare), can_upgrade=False)
    assert found.kind == "refused"
    assert any(said in reason for reason in found.reasons), found.reasons


def keyed(declare: Aggregated, *, key: str) -> Declaration:
    """Return the declaration of the store, of a stream whose key is a column."""
    app = new_app()
    declare(app.stream(flights(app, key=key)))
    return declaration_of(app.declared.store("late").spec)


def test_the_columns_that_place_rows_are_part_of_their_state() -> None:
    """With others, the rows of a group go to another partition than their state."""

    def cleaned(stream: sl.Stream) -> object:
        return plain(stream.with_columns(origin=sl.col("origin").str.strip_chars()))

    was = keyed(plain, key="origin")
    assert compare(was, keyed(plain, key="origin"), can_upgrade=False).kind == "same"
    for now in (keyed(cleaned, key="origin"), keyed(plain, key="carrier"), declared(plain)):
        found = compare(was, now, can_upgrade=False)
        assert found.kind == "refused"
        assert "; ".join(found.reasons) == (
            'placed_by: "origin, the key of the topic" before, '
            '"origin, through a repartition topic" now'
        )


def test_a_definition_without_parts_that_are_recorded_since_is_extended() -> None:
    """As earlier versions have recorded it."""
    now = keyed(plain, key="origin")
    assert now.definition is not None
    known = msgspec.json.decode(now.definition)
    for part in ("placed_by", "results", "state"):
        del known[part]
    text = msgspec.json.encode(known, order="sorted").decode()
    before = msgspec.structs.replace(now, definition=text)
    found = compare(before, now, can_upgrade=False)
    assert (found.kind, found.becomes) == ("wider", now)


def test_streams_that_are_placed_in_different_ways_are_placed_anew_after_a_merge() -> None:
    placed = Keying(("origin",), placed_by=("origin",))
    moved = dataclasses.replace(placed, is_repartitioned=True)
    assert moved != placed
    assert moved.without(["delay"]) == moved.within(["origin"]) == moved
    assert moved.without(["origin"]) == Keying()
    assert moved.renamed({"origin": "o"}).is_repartitioned


def test_the_time_of_duplicates_is_part_of_their_state() -> None:
    def within(time: str) -> Fingerprint:
        return print_of(lambda s: s.drop_duplicates(on="origin", within=time, name="once"))

    assert within("60m").sha256 == within("1h").sha256
    assert within("2h").sha256 != within("1h").sha256
