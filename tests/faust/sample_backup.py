"""A table that a view backs up, and that is restored before the worker starts if its test says so."""

import os

import faust
from sample_settings import BROKER, SESSION_S, STORE, named

app = faust.App(
    named("backed-up"),
    broker=BROKER,
    broker_session_timeout=SESSION_S,
    store=STORE,
    processing_guarantee="exactly_once",
    topic_partitions=1,
    datadir=os.environ["FAUST_DATA"],
)
source = app.topic(named("source"), key_type=str, value_type=int)
totals = app.Table("totals", default=int)


@app.agent(source)
async def add(stream):
    async for key, value in stream.items():
        totals[key] += value


@app.page("/backup/")
async def backup(web, request):
    """Back up the only partition, and keep the newest two backups."""
    await totals.data.backup_partition(0, purge=True, keep=2)
    return web.json({"done": True})


if "FAUST_RESTORE" in os.environ:
    number = int(os.environ["FAUST_RESTORE"])
    totals.data.restore_backup(0, latest=number == 0, backup_id=number)
