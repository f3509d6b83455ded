"""The log: topics, partitions, producers, transactions, consumer groups."""

__strandline__ = True
