"""The pipeline as an app that `strandline run` finds; its log, folder and names are the environment's."""

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
