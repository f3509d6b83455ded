"""Producers and consumers, on any `changelog.broker.Broker`.

producing        producer.py  outbox.py  accumulator.py  sender.py  standing.py
columns          columns.py  keys.py  partitioner.py
consuming        consumer.py  cursor.py
"""
