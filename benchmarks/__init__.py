"""Workloads for the figures of docs/benchmarks.md, each measured against a peer in the same run.

`make bench`, or `python -m benchmarks [NAME …] [--quick] [--json]`.
"""
