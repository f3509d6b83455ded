"""Queries of stores from other processes, after Kafka Streams' interactive queries.

client.py        what `sl.connect` gives: a connection, and the stores read through it
workers.py       which worker has a partition, and asking it until the deadline
committed.py     what a store holds as bytes, from workers or from changelogs
folded.py        the same from the changelogs, while no worker runs the app
connections.py   a client's sockets, kept for the next query
endpoint.py      a worker's side: listens, and answers on threads of its own
provider.py      what a worker can answer: the stores of the partitions that it holds
declared.py      how a store was declared, as far as that can be sent
messages.py      every type that crosses the wire
sockets.py       where workers listen
"""
