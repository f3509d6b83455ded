"""Leader election: one of the workers sends greetings, and any of them may get one."""

import os

import faust
from sample_settings import BROKER

NAME = os.environ.get("FAUST_NAME", "")

app = faust.App(
    "leading",
    broker=BROKER,
    store="strandline://",
    processing_guarantee="exactly_once",
    topic_partitions=2,
    datadir=f"data-{NAME}",
)
said = app.topic("said", key_type=str, value_type=str)


@app.timer(0.2, on_leader=True)
async def greet():
    await say.send(key=NAME, value=f"hello from {NAME}")


@app.crontab("* * * * *", timezone=None, on_leader=True)
async def every_minute():
    await said.send(key="crontab", value=NAME)


@app.agent(value_type=str)
async def say(greetings):
    async for greeting in greetings:
        await said.send(key=greeting, value=NAME)
