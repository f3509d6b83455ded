"""An Apache Kafka cluster as the log, through librdkafka (the package confluent-kafka).

`broker.connect("kafka://host:9092")` gives a `changelog.broker.Broker`. Nothing of librdkafka
leaves this folder: its exceptions become those of `changelog.errors` (failures.py).

Not available yet: typed topics, groups that share partitions, settings of the log as a whole,
asking for a cleaning, pins. What needs them says so.
"""
