"""Spark writes to a log: `df.write` and `df.writeStream` with `format("strandline")`.

A job, or a micro-batch, is one transaction over all of its tasks:

    1  each task appends its rows to a staging topic, which has no readers         staging
    2  the driver takes over the sink's transactional id, which fences others      commit
    3  it reads the sink's last committed batch, and stops here if this one is it  sinks
    4  it copies the staged rows of the successful attempts to their topic, adds the
       number of the batch, and commits: the rows and the number, or neither
    5  it deletes the staged rows, in a stream once they need space

Spark may request step 2 again, also after a restart; step 3 then ends it. Rows of failed, repeated
and speculative attempts stay in the staging topic and are deleted with it.

    options      options of a write
    target       the topic that is written: found, created, extended
    replacement  tombstones for replaced keys
    rows         rows of Spark as records
    writers      Spark's interface
"""
