"""Producers and consumers, on any `changelog.broker.Broker`.

producing        producer.py  unsent.py  accumulator.py  sender.py  transaction_state.py
columns          columns.py  keys.py  partitioner.py  tables.py
consuming        consumer.py  cursor.py  offset_reset.py
groups           group_subscription.py  membership.py
"""
