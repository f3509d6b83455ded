"""Runs the workloads and prints a table: `python -m benchmarks [NAME …] [--quick] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import asdict

from benchmarks.harness import Figure, machine

WORKLOADS = (
    "standard_job",
    "restore",
    "append",
    "attached",
    "queries",
    "spark_read",
    "memory",
    "scaling",
    "producers",
)


def main() -> int:
    """Run what was asked for; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller inputs")
    parser.add_argument("--json", action="store_true", help="one JSON line a figure")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}; there are {WORKLOADS}")
    print(f"# {machine()}", file=sys.stderr)
    figures: list[Figure] = []
    for name in arguments.names or WORKLOADS:
        module = importlib.import_module(f"benchmarks.{name}")
        for figure in module.run(quick=arguments.quick):
            figures.append(figure)
            print(json.dumps(asdict(figure)) if arguments.json else _line(figure), flush=True)
    return 0 if all(figure.reached for figure in figures) else 1


def _line(figure: Figure) -> str:
    verdict = ""
    if figure.target is not None:
        bound = "≤" if figure.at_most else "≥"
        verdict = f"  target {bound} {figure.target:g} {'reached' if figure.reached else 'MISSED'}"
    return (
        f"{figure.name}: {_rate(figure.ours)} {figure.unit}, {figure.ratio:.2f} × "
        f"{figure.peer_name} ({_rate(figure.peer)}; {figure.low:.2f}–{figure.high:.2f}){verdict}"
    )


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


if __name__ == "__main__":
    sys.exit(main())
