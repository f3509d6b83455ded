"""Numbers about what runs here, and Prometheus's text format for them.

    Metric                          what a number is called, and what it means
    Counter · Histogram · Latency   count as things happen, on any thread
    Reading                         a number at one moment
    exposition                      readings as text, format 0.0.4

There is no global registry: whoever counts gives its readings when it is asked. What can be
found out by looking is not counted, but looked at then; so counting costs what runs next to nothing.

The numbers name topics, tasks and stores. No key and no value of a record is ever among them.
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
"""Bounds for what takes from a tenth of a millisecond to ten seconds."""

QUANTILES = (0.5, 0.95, 0.99)
RECENT = 1_000
"""Of how many observations, the last ones, quantiles are told."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What is told under one name."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    meaning: str
    labels: tuple[str, ...] = ()
    """The names of what tells its readings apart."""


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """What a histogram has seen."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """Observations up to each bound and above the one before it; last those above all."""
    total: float
    """All observations, added up."""

    @property
    def count(self) -> int:
        """How many observations."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """How the last observations were spread."""

    values: tuple[tuple[float, float], ...]
    """Quantile and value; none before the first observation."""
    count: int
    """How many observations there were in all."""
    total: float


class MetricReading(NamedTuple):
    """A number at one moment."""

    metric: Metric
    labels: tuple[str, ...]
    """A value for each label of the metric."""
    value: float | HistogramValue | Quantiles


@runtime_checkable
class MetricSource(Protocol):
    """What tells numbers of itself; may be asked from any thread."""

    def metrics(self) -> list[MetricReading]:
        """Its readings of this moment."""
        ...


def measured(thing: object) -> list[MetricReading]:
    """The readings of what is `MetricSource`; none of anything else."""
    return thing.metrics() if isinstance(thing, MetricSource) else []


class MonotonicCounter:
    """A number that only grows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self, amount: int = 1) -> None:
        """So much more."""
        with self._lock:
            self.value += amount


class Histogram:
    """How often something was how large.

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
        """How many observations."""
        return self.read().count

    def observe(self, value: float, times: int = 1) -> None:
        """It was `value`, that many times."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += times
            self._total += value * times

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Observe how many seconds the block takes, unless it raises."""
        begun = time.perf_counter()
        yield
        self.observe(time.perf_counter() - begun)

    def read(self) -> HistogramValue:
        """What was seen so far."""
        with self._lock:
            return HistogramValue(self._bounds, tuple(self._counts), self._total)


class Latency(Histogram):
    """A histogram that also knows the quantiles of the last observations.

    >>> waits = Latency()
    >>> for ms in range(1, 101): waits.observe(ms / 1000)
    >>> waits.recent().values
    ((0.5, 0.05), (0.95, 0.095), (0.99, 0.099))
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        super().__init__(bounds)
        self._last: deque[float] = deque(maxlen=RECENT)

    def observe(self, value: float, times: int = 1) -> None:
        super().observe(value, times)
        with self._lock:
            self._last.extend([value] * times)

    def recent(self) -> Quantiles:
        """The quantiles of the last `RECENT` observations."""
        with self._lock:
            last = sorted(self._last)
        seen = self.read()
        # The nearest rank: a value that was observed, none in between.
        ranks = [(q, math.ceil(q * len(last)) - 1) for q in QUANTILES] if last else []
        return Quantiles(tuple((q, last[rank]) for q, rank in ranks), seen.count, seen.total)


# The text format -----------------------------------------------------------------------


def exposition(readings: Iterable[MetricReading]) -> str:
    """Readings as Prometheus reads them: all of a metric together, in the order they came in.

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
    """The lines that tell one value: what is added to the name, and to the labels, and the number."""
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
    return "+Inf" if value == math.inf else repr(+value)  # of a bool, a number
