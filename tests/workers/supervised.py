"""The pipeline as an app for `strandline run`; log, folder and names are in environment
variables."""

from __future__ import annotations

import os

from tests.workers.pipeline import pipeline

app = pipeline(
    os.environ.get("STRANDLINE_LOG", "data/pipeline"),
    prefix=os.environ.get("PREFIX", ""),
    state_dir=os.environ.get("STATE"),
    commit_interval_ms=20,
    session_timeout_ms=2_000,
    durability="os",
).app
