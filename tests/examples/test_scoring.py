"""The example that scores flights: each flight once, with the scores of the model itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from examples.flights.data import read_flights
from examples.flights.scoring import features, scoring_app, trained
from strandline.framework.testing import CRASH, TestDriver


def test_each_flight_is_scored_once_as_the_model_scores_all_of_them() -> None:
    flights = read_flights(6_000)
    model, scored = trained(flights[:4_000]), flights[4_000:]
    app, _, scores = scoring_app(model, "unused")
    parts = [scored[:300], CRASH, scored[300:1_500], CRASH, scored[1_500:]]
    with TestDriver(app) as driver:
        found = [record.value for record in driver.run(parts).output(scores)]
    expected = scored.select("carrier", "flight", "dest", "time_hour").with_columns(
        probability=pl.Series(model.predict_proba(features(scored))[:, 1])
    )
    key = ["time_hour", "carrier", "flight", "dest"]
    shown = pl.DataFrame(
        [(s.carrier, s.flight, s.dest, s.time_hour, s.probability) for s in found],
        schema=expected.schema,
        orient="row",
    )
    assert shown.sort(key)[key].equals(expected.sort(key)[key])
    difference = shown.sort(key)["probability"] - expected.sort(key)["probability"]
    assert difference.abs().max() < 1e-9


@pytest.mark.long
@pytest.mark.slow
def test_the_example_prints_how_good_it_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.flights.scoring", "--limit", "5000"]
    done = subprocess.run(
        [*command, "--log", str(tmp_path / "log")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("5,000 flights scored, each once; area under the ROC curve: 0.")
