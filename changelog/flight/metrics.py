"""Metrics of a process's role in a log: ownership, takeovers and attached clients."""

from __future__ import annotations

from strandline.changelog.metrics import Metric

OWNED = Metric("strandline_log_owned", "gauge", "Whether this process owns the log.")
TAKEOVERS = Metric(
    "strandline_log_takeovers_total",
    "counter",
    "Times this process became the owner because the one before had gone.",
)
CLIENTS = Metric("strandline_log_clients", "gauge", "Processes attached to this one.", ("over",))
METRICS = (OWNED, TAKEOVERS, CLIENTS)
