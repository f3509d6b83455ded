"""`--metrics HOST:PORT` of the commands that keep running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from strandline.changelog.errors import InvalidConfig
from strandline.changelog.hosts import HIGHEST_PORT, bracketed
from strandline.framework.cli import logs, output
from strandline.framework.metrics import Collect, parse, served

MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Metrics for Prometheus at http://HOST:PORT/metrics; port 0 chooses a free one.",
    ),
]


@contextmanager
def serving_metrics(address: str | None, collect: Collect) -> Iterator[None]:
    """Serve metrics while the block runs, if there is an address, and print the URL."""
    with served(address, collect) as url:
        # With logs as JSON, the log message of the endpoint is shown instead.
        if url and not logs.are_json():
            output.note(f"metrics are at {url}")
        yield


def metrics_options_of_workers(address: str | None, count: int) -> list[list[str]]:
    """Return one `--metrics` option per worker, with the ports that follow this process's port.

    Raises InvalidConfig.

    >>> metrics_options_of_workers("[::1]:9464", 2)
    [['--metrics', '[::1]:9465'], ['--metrics', '[::1]:9466']]
    """
    if address is None:
        return [[]] * count
    host, port = parse(address)
    if port + count > HIGHEST_PORT:
        raise InvalidConfig(
            f"--metrics {address} takes that port and the {count} after it, one for each worker; "
            f"choose one up to {HIGHEST_PORT - count}"
        )
    ports = [port and port + 1 + number for number in range(count)]
    return [["--metrics", f"{bracketed(host)}:{number}"] for number in ports]
