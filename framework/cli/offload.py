"""`strandline offload TOPIC --to PATH`: a topic as Parquet files, or in a table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from strandline.changelog.errors import InvalidConfig
from strandline.framework.cli import output
from strandline.framework.cli.loading import load_app, opened
from strandline.framework.cli.offline import ReadingBar
from strandline.framework.cli.options import JsonOption, LogOption, settings
from strandline.framework.offload.api import DataLoss, Format, OffloadOptions
from strandline.framework.offload.api import offload as load
from strandline.framework.offload.loader import OffloadReport
from strandline.framework.offload.target import PartitionBy
from strandline.framework.topic import Topic

DEFAULTS = OffloadOptions()


def offload(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to load.")],
    to: Annotated[
        str, typer.Option("--to", metavar="PATH", help="Folder of the files; created if necessary.")
    ],
    form: Annotated[Format, typer.Option("--format", help="Format of the target.")] = "parquet",
    partition_by: Annotated[
        PartitionBy,
        typer.Option("--partition-by", help="Divide the files by the records' time (UTC)."),
    ] = "none",
    max_file_bytes: Annotated[
        int, typer.Option("--max-file-bytes", min=1, metavar="N", help="Size that closes a file.")
    ] = DEFAULTS.max_file_bytes,
    max_file_rows: Annotated[
        int, typer.Option("--max-file-rows", min=1, metavar="N", help="Rows that close a file.")
    ] = DEFAULTS.max_file_rows,
    commit_records: Annotated[
        int,
        typer.Option(
            "--commit-records",
            min=1,
            metavar="N",
            help="Maximum number of offsets of a partition in one commit.",
        ),
    ] = DEFAULTS.commit_records,
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            min=1,
            metavar="N",
            help="Partitions that are loaded at a time; by default as many as there are processors.",
        ),
    ] = None,
    on_data_loss: Annotated[
        DataLoss,
        typer.Option(
            "--on-data-loss",
            help="continue: go on after records that were removed before the load.",
        ),
    ] = "fail",
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="MODULE:APP",
            help="App that declares the topic: keys and values are decoded, from the app's log.",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="Iceberg table, as NAMESPACE.NAME; by default default.TOPIC.",
        ),
    ] = None,
    catalog: Annotated[
        list[str] | None,
        typer.Option(
            "--catalog-option",
            metavar="NAME=VALUE",
            help="A property of the Iceberg catalog; may be repeated. By default SQLite in PATH.",
        ),
    ] = None,
    json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Load a topic into Parquet files, Delta Lake or Iceberg, each record once.

    Each run continues where the last one ended, also after a crash, and ends at the topic's end.
    """
    with ExitStack() as closing:
        bar = closing.enter_context(ReadingBar("loading", unit="records"))
        if app is None:
            source: str | Topic[Any, Any] = topic
            where = closing.enter_context(opened(log))
        else:
            source, where = closing.enter_context(_declared(app, topic, log)), None
        report = load(
            source,
            to,
            log=where,
            progress=bar,
            format=form,
            partition_by=partition_by,
            max_file_bytes=max_file_bytes,
            max_file_rows=max_file_rows,
            commit_records=commit_records,
            tasks=tasks,
            on_data_loss=on_data_loss,
            table=table,
            catalog=settings(catalog),
        )
    _show(report, to, json=json)


@contextmanager
def _declared(target: str, topic: str, log: str | None) -> Iterator[Topic[Any, Any]]:
    """Yield the topic that an app declares. Raise InvalidConfig if there is none."""
    if log is not None:
        os.environ["STRANDLINE_LOG"] = log  # the constructor of App reads it
    app = load_app(target)
    declared = app.declared.all_topics
    if topic not in declared:
        known = ", ".join(declared) or "none"
        raise InvalidConfig(f"{target} declares no topic {topic!r}; its topics: {known}")
    try:
        yield declared[topic]
    finally:
        app.close()


def _show(report: OffloadReport, to: str, *, json: bool) -> None:
    if json:
        output.document(asdict(report))
        return
    for gap in report.gaps:
        output.note(f"left out, because it was removed before it was loaded: {gap}")
    output.line(
        f"{output.number(report.rows)} records of {report.topic} were added to {to} "
        f"(files: {output.number(report.files)}, size: {output.size(report.bytes)}, "
        f"commits: {output.number(report.commits)})"
    )
