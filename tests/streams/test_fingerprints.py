"""Fingerprints change with what state depends on, and with nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline as sl
from strandline.framework.streams.fingerprints import Fingerprint, compatible
from tests.streams.support import flight_stream

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


def test_a_fingerprint_is_canonical_json_with_a_hash() -> None:
    found = print_of(plain)
    assert found.name == "late"
    assert found.json == (
        b'{"aggregates":{"n":{"columns":[],"kind":"count","result":"int64"},"worst":{"columns":'
        b'[["delay","int64"]],"kind":"max","result":"int64"}},"keys":[["origin","string"]],'
        b'"operator":"aggregate","partitioner":"murmur2","version":1,"window":{"grace_ms":0,'
        b'"kind":"tumbling","offset_ms":0,"size":"1h","tz":null}}'
    )
    assert found.sha256 == "bff9c83929a16896aa6f50e6127c2c70a72a679267174951c55707e83003c4be"


PROGRAM = """
from tests.streams.test_fingerprints import plain, print_of
print(print_of(plain).sha256)
"""


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


def figures(stream: sl.Stream, **more: Any) -> object:
    grouped = stream.group_by("origin").window(sl.tumbling("1h"))
    return grouped.agg(n=sl.count(), worst=sl.max("delay"), name="late", **more)


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
    verdict = compatible(print_of(plain).definition, print_of(declare).definition)
    assert (verdict.verdict, verdict.differences) == ("same", ())


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
        'keys: [["origin","string"]] before, [["origin","int64"]] now',
    ),
    "another order of keys": (
        lambda s: (
            s.group_by("origin", "carrier")
            .window(sl.tumbling("1h"))
            .agg(n=sl.count(), worst=sl.max("delay"), name="late")
        ),
        'keys: [["origin","string"]] before, [["origin","string"],["carrier","string"]] now',
    ),
    "another window": (
        lambda s: (
            s.group_by("origin")
            .window(sl.tumbling("1h", grace="1m"))
            .agg(n=sl.count(), worst=sl.max("delay"), name="late")
        ),
        'window: {"grace_ms":0,',
    ),
    "no window": (
        lambda s: s.group_by("origin").agg(n=sl.count(), worst=sl.max("delay"), name="late"),
        " before, null now",
    ),
    "another aggregate": (
        lambda s: (
            s.group_by("origin")
            .window(sl.tumbling("1h"))
            .agg(n=sl.count(), worst=sl.min("delay"), name="late")
        ),
        "the aggregate worst: ",
    ),
    "another column": (
        lambda s: (
            s.group_by("origin")
            .window(sl.tumbling("1h"))
            .agg(n=sl.count("speed"), worst=sl.max("delay"), name="late")
        ),
        "the aggregate n: ",
    ),
    "another type of a column": (
        lambda s: plain(s.with_columns(delay=sl.col("speed"))),
        '"columns":[["delay","double"]]',
    ),
    "a removed aggregate": (
        lambda s: s.group_by("origin").window(sl.tumbling("1h")).agg(n=sl.count(), name="late"),
        "the aggregate worst was removed",
    ),
    "another operator": (
        lambda s: s.drop_duplicates(on="origin", within="1h", name="late"),
        'operator: "aggregate" before, "drop_duplicates" now',
    ),
}


@pytest.mark.parametrize(("declare", "said"), CHANGED.values(), ids=CHANGED)
def test_what_state_depends_on_changes_it(declare: Aggregated, said: str) -> None:
    assert print_of(declare).sha256 != print_of(plain).sha256
    found = compatible(print_of(plain).definition, print_of(declare).definition)
    assert found.verdict == "changed"
    assert any(said in difference for difference in found.differences), found.differences


def test_a_new_aggregate_extends_state() -> None:
    extended = print_of(lambda s: figures(s, total=sl.sum("delay")))
    found = compatible(print_of(plain).definition, extended.definition)
    assert (found.verdict, found.differences) == ("extended", ("the aggregate total was added",))
    assert compatible(extended.definition, print_of(plain).definition).verdict == "changed"


def test_a_new_aggregate_beside_another_change_is_a_change() -> None:
    wider = print_of(lambda s: figures(s.with_columns(origin="delay"), total=sl.sum("delay")))
    found = compatible(print_of(plain).definition, wider.definition)
    assert found.verdict == "changed"
    assert "the aggregate total was added" in found.differences


def test_the_time_of_duplicates_is_part_of_their_state() -> None:
    def within(time: str) -> Fingerprint:
        return print_of(lambda s: s.drop_duplicates(on="origin", within=time, name="once"))

    assert within("60m").sha256 == within("1h").sha256
    assert compatible(within("1h").definition, within("2h").definition).differences == (
        "within_ms: 3600000 before, 7200000 now",
    )
