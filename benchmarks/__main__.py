"""Run the workloads and print a table: `python -m benchmarks [NAME …] [--quick] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence

from benchmarks.harness import Figure, report

WORKLOADS = (
    "standard_job",
    "restore",
    "opening",
    "append",
    "attached",
    "queries",
    "asked",
    "spark_read",
    "memory",
    "budget",
    "steady",
    "scaling",
    "producers",
    "commits",
    "partitions",
    "state_size",
    "expiry",
    "deleted_range",
    "async_calls",
    "timers",
    "streams",
    "latency",
    "serdes",
    "moving",
    "offload",
)


def main() -> int:
    """Run the workloads named on the command line. Return 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller inputs")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {WORKLOADS}")
    return report(_figures(arguments.names or WORKLOADS, arguments.quick), arguments.json)


def _figures(names: Sequence[str], quick: bool) -> Iterator[Figure]:
    for name in names:
        yield from importlib.import_module(f"benchmarks.{name}").run(quick=quick)


if __name__ == "__main__":
    sys.exit(main())
