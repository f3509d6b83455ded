"""Metrics, and Prometheus's text format for them.

    Metric                                   name, kind, description and labels of a metric
    MonotonicCounter · Histogram · Latency   thread-safe counters of events
    MetricReading                            the value of a metric at one moment
    exposition                               readings as text, format 0.0.4

There is no global registry: each component returns its readings on request (`MetricSource`). Values
that can be computed at that time are not counted beforehand, so counting costs almost nothing.

Labels name topics, tasks and stores. They never contain keys or values of records.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol, runtime_checkable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Histogram bounds in seconds, from 0.1 ms to 10 s."""

QUANTILES = (0.5, 0.95, 0.99)
RECENT_OBSERVATIONS = 1_000
"""Number of latest observations from which quantiles are computed."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Name, kind, description and labels of a metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    meaning: str
    """Description, Prometheus's HELP text."""
    labels: tuple[str, ...] = ()
    """Names of the labels that distinguish the readings of the metric."""


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """The content of a histogram."""

    bounds: tuple[float, ...]
    """Upper bounds (inclusive) of the buckets, ascending."""
    counts: tuple[int, ...]
    """Number of observations in each bucket; the last one counts those above all bounds."""
    total: float
    """Sum of all observations."""

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the latest observations."""

    values: tuple[tuple[float, float], ...]
    """Pairs of quantile and value; empty before the first observation."""
    count: int
    """Number of all observations."""
    total: float
    """Sum of all observations."""


class MetricReading(NamedTuple):
    """The value of a metric at one moment."""

    metric: Metric
    labels: tuple[str, ...]
    """Values of the metric's labels, in their order."""
    value: float | HistogramValue | Quantiles


@runtime_checkable
class MetricSource(Protocol):
    """A component with metrics. Any thread may call it."""

    def metrics(self) -> list[MetricReading]:
        """Return the current readings."""
        ...


def measured(thing: object) -> list[MetricReading]:
    """Return the readings of a `MetricSource`; an empty list for other objects."""
    return thing.metrics() if isinstance(thing, MetricSource) else []


class MonotonicCounter:
    """A number that only grows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """Add `amount` to the number."""
        with self._lock:
            self.value += amount


class Histogram:
    """Counts of observations by size. Thread-safe.

    >>> sizes = Histogram((1, 10))
    >>> sizes.observe(1); sizes.observe(3, times=2); sizes.observe(50)
    >>> sizes.read()
    HistogramValue(bounds=(1, 10), counts=(1, 2, 1), total=57.0)
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._lock = threading.Lock()
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return self.read().count

    def observe(self, value: float, times: int = 1) -> None:
        """Count an observation of `value`, or several equal ones."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += times
            self._total += value * times

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Observe the seconds that a `with` block takes, unless it raises."""
        begun = time.perf_counter()
        yield
        self.observe(time.perf_counter() - begun)

    def read(self) -> HistogramValue:
        """Return the observations so far."""
        with self._lock:
            return HistogramValue(self._bounds, tuple(self._counts), self._total)


class Latency(Histogram):
    """A histogram that also has the quantiles of the latest observations.

    >>> waits = Latency()
    >>> for ms in range(1, 101): waits.observe(ms / 1000)
    >>> waits.recent().values
    ((0.5, 0.05), (0.95, 0.095), (0.99, 0.099))
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: deque[float] = deque(maxlen=RECENT_OBSERVATIONS)

    def observe(self, value: float, times: int = 1) -> None:
        super().observe(value, times)
        with self._lock:
            self._last.extend([value] * times)

    def recent(self) -> Quantiles:
        """Return the quantiles of the latest `RECENT_OBSERVATIONS` observations."""
        with self._lock:
            last = sorted(self._last)
        seen = self.read()
        # Nearest rank: return observed values, without interpolation.
        ranks = [(q, math.ceil(q * len(last)) - 1) for q in QUANTILES] if last else []
        return Quantiles(tuple((q, last[rank]) for q, rank in ranks), seen.count, seen.total)


# The text format -----------------------------------------------------------------------


def exposition(readings: Iterable[MetricReading]) -> str:
    """Return readings in Prometheus's text format, grouped by metric, in the given order.

    >>> waiting = Metric("waiting", "gauge", "How many wait.", ("line",))
    >>> print(exposition([MetricReading(waiting, ("left",), 2)]), end="")
    # HELP waiting How many wait.
    # TYPE waiting gauge
    waiting{line="left"} 2
    """
    by_metric: dict[Metric, list[MetricReading]] = {}
    for reading in readings:
        by_metric.setdefault(reading.metric, []).append(reading)
    return "".join(line + "\n" for group in by_metric.items() for line in _lines(*group))


def _lines(metric: Metric, readings: Sequence[MetricReading]) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escaped(metric.meaning)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for reading in readings:
        labels = dict(zip(metric.labels, reading.labels, strict=True))
        for suffix, extra, value in _samples(reading.value):
            yield f"{metric.name}{suffix}{_braced({**labels, **extra})} {_number(value)}"


def _samples(
    value: float | HistogramValue | Quantiles,
) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the samples of a value: suffix of the name, additional labels, and number."""
    if isinstance(value, HistogramValue):
        bounds = (*value.bounds, math.inf)
        for bound, count in zip(bounds, accumulate(value.counts), strict=True):
            yield "_bucket", {"le": _number(bound)}, count
    elif isinstance(value, Quantiles):
        for quantile, at in value.values:
            yield "", {"quantile": _number(quantile)}, at
    else:
        yield "", {}, value
        return
    yield "_sum", {}, value.total
    yield "_count", {}, value.count


def _braced(labels: dict[str, str]) -> str:
    told = ",".join(f'{name}="{_escaped(value, quote=True)}"' for name, value in labels.items())
    return f"{{{told}}}" if told else ""


def _escaped(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quote else escaped


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(+value)  # the plus makes an int of a bool
