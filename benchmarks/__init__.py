"""The figures of docs/benchmarks.md, each measured against a peer or a limit in the same run.

`make bench`, or `python -m benchmarks [NAME …] [--quick] [--json]`.
"""
