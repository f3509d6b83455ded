"""Comparison of the results, figure by figure, with the raw flights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from examples.flights.data import ALL_FLIGHTS, WITHOUT_DELAY
from examples.flights.expected import FIGURES, Expected
from examples.flights.results import FlightResults

ALL_KEYS = {"carriers": 16, "origins": 3, "origin-carriers": 35}
"""Number of keys of each store after all flights."""


@dataclass(frozen=True)
class Check:
    """One condition that must hold."""

    says: str
    """The condition in words."""
    wrong: str = ""
    """Difference found; empty if the condition holds."""


def all_checks(expected: Expected, results: FlightResults, flights: pl.DataFrame) -> list[Check]:
    """Return all conditions on the results."""
    stores = {
        "carriers": (expected.carriers, results.carriers),
        "origins": (expected.origins, results.origins),
        "origin-carriers": (expected.routes, results.routes),
    }
    checks = []
    for name, (raw, got) in stores.items():
        checks += [_keys(name, raw, got, flights), *_figures(name, raw, got)]
        checks.append(_without_delay(name, got, flights))
    return [*checks, *_running(expected.running, results.running)]


def report(checks: list[Check], console: Console) -> bool:
    """Print each check; return True if all hold."""
    for check in checks:
        if check.wrong:
            console.print(f"  [bold red]✗[/] {check.says}", soft_wrap=True)
            console.print(check.wrong, markup=False)
        else:
            console.print(f"  [green]✓[/] {check.says}", soft_wrap=True)
    wrong = sum(1 for check in checks if check.wrong)
    if wrong:
        console.print(f"[bold red]{wrong} of {len(checks)} checks failed[/]")
    else:
        console.print(f"[bold green]all {len(checks)} checks hold[/]")
    return not wrong


def show_carriers(results: FlightResults, expected: Expected, console: Console) -> None:
    """Print the table of carriers, each figure with a mark for agreement with the raw flights."""
    table = Table(title="Departure delays by carrier", title_justify="left")
    table.add_column("carrier")
    for heading in ("flights", "delays", "total, minutes", "mean", "worst"):
        table.add_column(heading, justify="right")
    raw = {row["carrier"]: row for row in expected.carriers.to_dicts()}
    for row in results.carriers.to_dicts():
        same = raw.get(row["carrier"], {})
        table.add_row(row["carrier"], *(_marked(row[f], same.get(f)) for f in FIGURES))
    console.print(table)


def _marked(got: Any, raw: Any) -> str:
    text = "–" if got is None else f"{got:,.2f}" if isinstance(got, float) else f"{got:,}"
    return f"{text} [green]✓[/]" if got == raw else f"{text} [red]✗ {raw}[/]"


def _keys(name: str, raw: pl.DataFrame, got: pl.DataFrame, flights: pl.DataFrame) -> Check:
    keys = ALL_KEYS[name] if flights.height == ALL_FLIGHTS else raw.height
    says = f"store {name} holds exactly {keys} keys over all partitions"
    return Check(says, "" if keys == raw.height == got.height else f"    it holds {got.height}")


def _figures(name: str, raw: pl.DataFrame, got: pl.DataFrame) -> list[Check]:
    by = [column for column in raw.columns if column not in FIGURES]
    both = raw.join(got, on=by, how="full", coalesce=True, suffix="_got")
    checks = []
    for figure in FIGURES:
        differs = both.filter(~pl.col(figure).eq_missing(pl.col(f"{figure}_got")))
        wrong = str(differs.select(*by, figure, f"{figure}_got")) if differs.height else ""
        checks.append(Check(f"store {name}: {figure} of all {raw.height} keys is equal", wrong))
    return checks


def _without_delay(name: str, got: pl.DataFrame, flights: pl.DataFrame) -> Check:
    total, without = flights.height, flights["dep_delay"].null_count()
    known = WITHOUT_DELAY if total == ALL_FLIGHTS else without
    counted, delays = int(got["n"].sum()), int(got["delays"].sum())
    says = (
        f"store {name} counts {total:,} flights; the {without:,} without a departure delay "
        "are flights, not delays"
    )
    right = (counted, counted - delays, known) == (total, without, without)
    return Check(says, "" if right else f"    it counts {counted:,} flights, {delays:,} delays")


def _running(raw: pl.DataFrame, got: pl.DataFrame) -> list[Check]:
    same_length = raw.height == got.height
    count = Check(
        f"carrier-delays holds {raw.height:,} records, one for each flight",
        "" if same_length else f"    it holds {got.height:,}",
    )
    nth = pl.int_range(1, pl.len() + 1).over("carrier")
    gaps = got.with_row_index("at").with_columns(nth=nth).filter(pl.col("n") != pl.col("nth"))
    steps = Check(
        "carrier-delays shows n = 1, 2, 3 … per carrier without a gap or a repeat",
        str(gaps.head(5)) if gaps.height else "",
    )
    partitions = got.group_by("carrier").agg(pl.col("partition").n_unique().alias("partitions"))
    scattered = partitions.filter(pl.col("partitions") > 1)
    one_each = Check("each carrier is in one partition", str(scattered) if scattered.height else "")
    if not same_length:
        return [count, steps, one_each]
    return [count, steps, one_each, *_folds(raw, got)]


def _folds(raw: pl.DataFrame, got: pl.DataFrame) -> list[Check]:
    """Compare all running values; both frames are sorted by carrier, and ordered within each."""
    both = raw.hstack(got.rename(lambda name: f"{name}_got"))
    checks = []
    for figure in FIGURES:
        same = pl.col(figure).eq_missing(pl.col(f"{figure}_got"))
        differs = both.filter(~(same & (pl.col("carrier") == pl.col("carrier_got"))))
        shown = dict.fromkeys(("carrier", "n", figure, f"{figure}_got"))
        wrong = str(differs.select(*shown).head(5))
        says = f"carrier-delays: all {raw.height:,} running values of {figure} equal the fold"
        checks.append(Check(says, wrong if differs.height else ""))
    return checks
