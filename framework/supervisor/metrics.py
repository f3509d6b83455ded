"""Metrics of a supervisor about its workers (docs/guide/operating.md, Metrics)."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.changelog.metrics import Metric, MetricReading
from strandline.framework.supervisor.slots import WorkerRow, lag_of

WORKERS = Metric(
    "strandline_workers", "gauge", "Worker processes of this supervisor.", ("app", "state")
)
RESTARTS = Metric(
    "strandline_worker_restarts_total",
    "counter",
    "Times a worker that had ended was started again.",
    ("app", "worker"),
)
RECORDS = Metric(
    "strandline_workers_records_total",
    "counter",
    "Records handled and committed by all workers, those that have ended included.",
    ("app",),
)
LAG = Metric(
    "strandline_workers_lag_records",
    "gauge",
    "Offsets from what workers have committed to the end of the input, as they said last.",
    ("app", "topic"),
)
METRICS = (WORKERS, RESTARTS, RECORDS, LAG)


class Workers:
    """Metrics of `wanted` workers as of the last `note`. Thread-safe."""

    def __init__(self, app: str, wanted: int) -> None:
        self._app = app
        self._wanted = wanted
        self._rows: Sequence[WorkerRow] = ()

    def note(self, rows: Sequence[WorkerRow]) -> None:
        """Set the current state of the workers."""
        self._rows = rows

    def metrics(self) -> list[MetricReading]:
        """Return the metrics."""
        app, rows = self._app, self._rows
        return [
            MetricReading(WORKERS, (app, "wanted"), self._wanted),
            MetricReading(WORKERS, (app, "alive"), sum(row.pid is not None for row in rows)),
            MetricReading(WORKERS, (app, "running"), sum(row.state == "running" for row in rows)),
            *(MetricReading(RESTARTS, (app, str(row.worker)), row.restarts) for row in rows),
            MetricReading(RECORDS, (app,), sum(row.records for row in rows)),
            *(MetricReading(LAG, (app, topic), lag) for topic, lag in lag_of(rows).items()),
        ]
