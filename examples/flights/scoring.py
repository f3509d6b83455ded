"""Scores flights as they come: a model of scikit-learn in a batch task.

    python -m examples.flights.scoring

A model learns from the flights of January to September which flights leave more than 15 minutes
late. A batch task scores the flights of the last three months, thousands at a time: a call of the
model costs as much for one row as for a thousand. Scores and input offsets commit together, so each
flight is scored exactly once, whatever is killed meanwhile.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy.typing as npt
import polars as pl
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import strandline as sl
from examples.flights.app import Flight
from examples.flights.data import read_flights

LATE_MINUTES = 15
"""Minutes of delay above which a flight is late."""
SCORED_FROM = datetime(2013, 10, 1, tzinfo=UTC)
"""Time of the first flight that is scored; the model learns from those before."""
NUMBERS = ["hour", "weekday", "distance"]
NAMES = ["carrier", "origin", "dest"]


@dataclass(frozen=True)
class Score:
    """Probability that a flight leaves late."""

    carrier: str
    flight: int
    dest: str
    time_hour: datetime
    probability: float


def features(flights: pl.DataFrame) -> npt.NDArray[Any]:
    """Return what the model knows of each flight before it leaves."""
    when = pl.col("time_hour")
    frame = flights.with_columns(hour=when.dt.hour(), weekday=when.dt.weekday())
    return frame.select(*NUMBERS, *NAMES).to_numpy()


def trained(flights: pl.DataFrame) -> Pipeline:
    """Return a model that has learnt from `flights`; cancelled ones are left out."""
    known = flights.drop_nulls("dep_delay")
    numbers, names = list(range(len(NUMBERS))), list(range(len(NUMBERS), len(NUMBERS + NAMES)))
    columns = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), names)
    )
    model = make_pipeline(columns, LogisticRegression(max_iter=300))
    model.fit(features(known), known["dep_delay"].to_numpy() > LATE_MINUTES)
    return model


def scoring_app(model: Pipeline, log: str | Path) -> tuple[sl.App, Any, Any]:
    """Return an app that scores flights by `model`, its input and its output."""
    app = sl.App("scoring", log=log)
    flights = app.topic("flights", value=Flight, key="carrier", timestamp="time_hour", partitions=4)
    scores = app.topic("scores", value=Score, key="carrier", timestamp="time_hour", partitions=4)

    @app.task(flights, batch=True)
    def score(batch: sl.Batch) -> None:
        frame = batch.to_polars()
        probabilities = model.predict_proba(features(frame))[:, 1]
        shown = frame.select("carrier", "flight", "dest", "time_hour")
        scores.send_batch(shown.with_columns(probability=pl.Series(probabilities)))

    return app, flights, scores


def main() -> None:
    """Train, score, and print how good the scores are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", default="data/scoring", help="folder of the log")
    parser.add_argument("--limit", type=int, help="number of flights to score; all by default")
    arguments = parser.parse_args()
    every = read_flights()
    split = every["time_hour"].search_sorted(SCORED_FROM)
    scored = every[split:].head(arguments.limit or len(every))
    app, flights, scores = scoring_app(trained(every[:split]), arguments.log)
    with app:
        flights.append(scored)
        handled = app.run(until="idle", progress=False)
        found = scores.to_polars()
    by = ["carrier", "flight", "dest", "time_hour"]
    joined = scored.drop_nulls("dep_delay").join(found, on=by)
    is_late = joined["dep_delay"].to_numpy() > LATE_MINUTES
    quality = roc_auc_score(is_late, joined["probability"].to_numpy())
    print(f"{handled:,} flights scored, each once; area under the ROC curve: {quality:.2f}")


if __name__ == "__main__":
    main()
