"""An Apache Kafka cluster as the log, through librdkafka (the package confluent-kafka).

`broker.connect("kafka://host:9092")` gives a `changelog.broker.Broker`. Nothing of librdkafka
leaves this folder: its exceptions become those of `changelog.errors` (failures.py). Read in this order:

    address, connection     a URL, and what all parts share; heard: what librdkafka says of itself
    topics, settings        topics, by Kafka's names
    sending, producers      a batch of ours is one of Kafka's; what was written already
    transactions            of one producer
    reader, fetching        reading on from any position; messages: as columns; idle: what is kept for it
    offsets, groups         the ends of partitions; committed offsets; coordinators: who is asked for these
    units, member           membership: what is shared out, and a consumer that takes part
    roster, members         what members tell one another; all of it together

What is the cluster's own affair (settings of its brokers, its cleaner) is refused, and says so. There are
no pins, and values are bytes.
"""
