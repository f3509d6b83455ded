"""The text format: exported values are the ones that a reader of Prometheus's format gets."""

from __future__ import annotations

import threading

import pytest

from strandline.changelog.metrics import (
    Histogram,
    Latency,
    Metric,
    MetricReading,
    MonotonicCounter,
    exposition,
)
from tests.metrics.scraping import parsed

WAITING = Metric("waiting", "gauge", "How many\nwait \\ here.", ("line",))
SERVED = Metric("served_total", "counter", "How many were served.")
TOOK = Metric("took_seconds", "histogram", "How long it took.", ("line",))
LAST = Metric("last_seconds", "summary", "How long the last ones took.")


def test_numbers_are_parsed_as_they_were_exported() -> None:
    took, last = Histogram((0.001, 1)), Latency()
    for seconds in (0.001, 0.5, 7.0):
        took.observe(seconds)
        last.observe(seconds)
    odd = 'a "b" \\ c\nd,e="f"}'
    seen = parsed(
        exposition(
            [
                MetricReading(WAITING, ("left",), 2),
                MetricReading(SERVED, (), 12_345_678_901),
                MetricReading(TOOK, (odd,), took.read()),
                MetricReading(LAST, (), last.recent()),
                MetricReading(WAITING, (odd,), 1e-07),
            ]
        )
    )
    assert [family.kind for family in seen.families.values()] == [
        *("gauge", "counter", "histogram", "summary")
    ]
    assert (seen("waiting", line="left"), seen("waiting", line=odd)) == (2, 1e-07)
    assert seen("served_total") == 12_345_678_901
    buckets = [seen("took_seconds_bucket", line=odd, le=le) for le in ("0.001", "1", "+Inf")]
    assert buckets == [1, 2, 3]
    assert seen("took_seconds_sum") == pytest.approx(7.501)
    assert seen("last_seconds", quantile="0.5") == 0.5
    assert (seen("last_seconds", quantile="0.99"), seen("last_seconds_count")) == (7, 3)


def test_no_metrics_give_an_empty_page() -> None:
    assert exposition([]) == ""
    assert (
        parsed(exposition([MetricReading(LAST, (), Latency().recent())]))("last_seconds_count") == 0
    )


@pytest.mark.parametrize(
    "text",
    [
        "a 1\n",
        "# HELP a b\na 1\n",
        "# HELP a b\n# TYPE a gauge\na 1",
        "# HELP a b\n# TYPE a gauge\na 1\na 2\n",
        "# HELP a b\n# TYPE a gauge\na True\n",
        '# HELP a b\n# TYPE a gauge\na{b="c} 1\n',
        "# HELP a b\n# TYPE a counter\na 1\n",
        "# HELP a b\n# TYPE a gauge\na 1\n# HELP c d\n# TYPE c gauge\n# HELP a b\n# TYPE a gauge\n",
        '# HELP a b\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
    ],
)
def test_the_parser_refuses_invalid_text(text: str) -> None:
    with pytest.raises((AssertionError, IndexError)):
        parsed(text)


def test_counts_of_several_threads_are_exact() -> None:
    counter, took = MonotonicCounter(), Histogram()

    def count() -> None:
        for _ in range(20_000):
            counter.add()
            took.observe(0.25)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == took.read().count == 80_000
    assert took.read().total == 20_000
