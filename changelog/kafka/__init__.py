"""An Apache Kafka cluster as the log, through librdkafka (the package confluent-kafka).

`broker.connect("kafka://host:9092")` returns a `changelog.broker.Broker`. Nothing of librdkafka
leaves this folder: its exceptions are translated to those of `changelog.errors` (failures.py). Read
the modules in this order:

    librdkafka                 the version that is needed
    address, connection        URLs; the connection that all parts share
    client_logs, callbacks     librdkafka's log lines and events; errors raised in its callbacks
    topics, settings           topics, and their settings by Kafka's names
    producing, producers       one batch of the log is one batch of Kafka; batches written already
    transactions, deadline     the transactions of one producer; calls that may hang
    reader, fetching           reading from any position
    messages, idle_pool        messages as columns; consumers kept for the next call
    offsets, groups            bounds of partitions; committed offsets
    metadata_consumer,
    coordinators               consumers for queries; queries to the coordinators of groups
    copartitioning, member     units of assignment; a consumer that is a member of a group
    member_directory, members  data that members share through a topic; all memberships

Calls about the cluster's own operation (settings of brokers, the cleaner) are rejected with an
explanation. Kafka has no pins, and values are bytes.
"""
