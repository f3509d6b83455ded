"""App of the chaos: each record is copied, with running figures of two tables, and grouped again.

After SIGHUP the worker kills itself in its next commit, after its outputs are written and before
the commit of the transaction. (Faust takes SIGUSR1 and SIGUSR2 for itself.) With FAUST_CARELESS it
commits offsets in a step of their own, after the outputs, and kills itself between the two.
"""

import os
import signal
import sys

import faust

from strandline.changelog.client.producer import Producer
from strandline.framework.faust import commit
from tests.chaos.worker import die_before
from tests.faust.sample_chaos_terms import BUCKETS, WINDOW_S

app = faust.App(
    "chaos",
    broker=os.environ["FAUST_BROKER"],
    store=os.environ.get("FAUST_STORE", "strandline://"),
    processing_guarantee=os.environ.get("FAUST_GUARANTEE", "exactly_once"),
    topic_partitions=4,
    datadir=os.environ["FAUST_DATA"],
    table_standby_replicas=int(os.environ.get("FAUST_STANDBYS", "0")),
    broker_session_timeout=3.0,
    broker_heartbeat_interval=1.0,
)
source = app.topic("source", key_type=str, value_type=int)
copies = app.topic("copies", key_type=str, value_type=dict)
buckets = app.topic("buckets", key_type=str, value_type=list)
totals = app.Table("totals", key_type=str, default=lambda: [0, 0])
recent = app.Table("recent", default=int).tumbling(WINDOW_S).relative_to_stream()
per_bucket = app.Table("per_bucket", key_type=str, default=int)


@app.agent(source)
async def copy(stream):
    async for event in stream.events():
        key, value = event.key, event.value
        number, total = totals[key]
        totals[key] = [number + 1, total + value]
        recent[key] += 1
        row = {"value": value, "n": number + 1, "total": total + value}
        await copies.send(key=key, value={**row, "window": recent[key].current()})


@app.agent(source)
async def group(stream):
    grouped = stream.group_by(lambda value: str(value % BUCKETS), name="bucket", partitions=4)
    async for bucket, value in grouped.items():
        per_bucket[bucket] += 1
        await buckets.send(key=bucket, value=[value, per_bucket[bucket]])


@app.page("/tables/")
async def tables(web, request):
    """Show the partitions of the tables that this worker has."""
    return web.json({"totals": dict(totals.items()), "per_bucket": dict(per_bucket.items())})


known = commit.commit_until_known
pending = []
"""Offsets that a careless worker has still to commit: producer, offsets, member."""


def commit_offsets():
    """Commit the offsets that belong to outputs which are committed already."""
    while pending:
        producer, offsets, member = pending.pop()
        producer._broker.commit_offsets(member.group, offsets, member_id=member.member_id)


def commit_in_two_steps(producer):
    """Commit the outputs, then the offsets."""
    known(producer)
    commit_offsets()


if "FAUST_CARELESS" in os.environ:
    Producer.send_offsets_to_transaction = lambda *work: pending.append(work)
    commit.commit_until_known = commit_in_two_steps
    die_before(sys.modules[__name__], "commit_offsets", signal.SIGHUP)
else:
    die_before(commit, "commit_until_known", signal.SIGHUP)
