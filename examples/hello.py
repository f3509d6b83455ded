"""Count words. No broker, no server: the log is the folder ./data/hello."""

import strandline as sl

app = sl.App("hello", log="data/hello")
words = app.topic("words", key=str, value=str)
counts = app.store("counts", key=str, value=int, default=0)


@app.task(words, stores=[counts])
def count(record: sl.Record[str, str]) -> None:
    counts[record.key] += 1


words.append((word, word) for word in ("the", "sea", "the", "shore", "the", "strandline"))
app.run(until="idle")
print(dict(app.query(counts).all()))
