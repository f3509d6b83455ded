"""Faust's word count: an agent that splits, group_by, a table, and the running counts as output."""

import os

import faust
from sample_settings import BROKER, SESSION_S, named

app = faust.App(
    named("wordcount"),
    broker=BROKER,
    broker_session_timeout=SESSION_S,
    store=os.environ.get("FAUST_STORE", "strandline://"),
    processing_guarantee=os.environ.get("FAUST_GUARANTEE", "exactly_once"),
    topic_partitions=2,
)
posts_topic = app.topic(named("posts"), value_type=str)
running = app.topic(named("running"), value_type=int)
word_counts = app.Table("word_counts", default=int, help="Keep count of words (str to int).")


@app.agent(posts_topic)
async def shuffle_words(posts):
    async for post in posts:
        for word in post.split():
            await count_words.send(key=word, value=word)


@app.agent(value_type=str)
async def count_words(words):
    async for word in words:
        word_counts[word] += 1
        await running.send(key=word, value=word_counts[word])
