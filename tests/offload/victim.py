"""A process that loads a topic again and again until it is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake  # noqa: F401
import pyiceberg.catalog.sql
import pyiceberg.io.pyarrow  # noqa: F401

import strandline as sl
from strandline.changelog.errors import InvalidRequest, LogLocked
from strandline.framework.offload.api import Format
from tests.offload.kit import PERIODS


def live(log: Path, to: Path, form: Format, steps: Any) -> None:
    """Load without end, in commits of few records; release `steps` once for each batch read."""
    while True:
        sl.offload(
            *("t", to),
            log=log,
            progress=lambda _done, _total: steps.release(),
            format=form,
            partition_by=PERIODS[1],
            commit_records=97,
            max_file_rows=50,
        )


def compete(log: Path, to: Path, form: Format, loads: int) -> None:
    """Load a number of times beside others that do the same."""
    done = 0
    while done < loads:
        try:
            sl.offload("t", to, log=log, format=form, partition_by=PERIODS[1], commit_records=97)
            done += 1
        except LogLocked:
            continue
        except InvalidRequest as error:
            raise AssertionError(f"a load was refused that was not overtaken: {error}") from error
