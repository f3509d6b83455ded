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


@app.page("/count/{word}/")
@app.table_route(table=word_counts, match_info="word")
async def get_count(web, request, word):
    return web.json({word: word_counts[word]})


@app.page("/seen/{word}/")
@app.topic_route(topic=posts_topic, match_info="word")
async def get_seen(web, request, word):
    return web.json({word: word in set(word_counts.keys())})


@app.on_rebalance_complete.connect
async def on_rebalance_complete(sender, **kwargs):
    print(word_counts.as_ansitable(key="word", value="count", title="after rebalance", sort=True))
