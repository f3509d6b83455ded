"""Queries of stores from other processes, after Kafka Streams' interactive queries.

client.py        `sl.connect`: a connection, and the stores read through it
workers.py       finds the worker that serves a partition, and asks it until the deadline
committed.py     the committed state of a store as bytes, from workers or from changelogs
folded.py        the committed state from changelogs, while no worker runs the app
placement.py     the partitions that can have a key
connections.py   a client's sockets, kept for later queries
endpoint.py      a worker's side: listens, and answers on its own threads
listener.py      one address of a worker: its clients, threads and limits
provider.py      answers of a worker: the stores of the partitions that it owns
declared.py      descriptions of stores for clients, and the codecs made from them
messages.py      all message types of the wire protocol
sockets.py       the sockets on which workers listen
"""
