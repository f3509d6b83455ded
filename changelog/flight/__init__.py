"""One owner, many clients: the log served over Arrow Flight, and the clients that use it.

    messages.py     message types of the wire protocol, and its version
    requests.py     the calls of a Broker as messages
    batches.py      Arrow batches of any schema in one stream
    endpoint.py     owner.json: the address at which the owner of a folder listens
    address.py      the URLs of remote logs
    sessions.py     live clients and their open transactions
    server.py       FlightEndpoint: a Broker for other processes
    connection.py   one connection: its session stream, its calls and their deadlines
    files.py        fetches that read the log's files directly
    client.py       FlightBroker: a Broker in another process
    guard.py        binds a transaction to the connection on which it began
    failover.py     FailoverBroker: reconnects when the owner changes
    owning.py       an Owner with its endpoint
    attach.py       owning or attaching, by role
    background.py   a background owner for short-lived tools
    serve.py        serves a log over TCP, with token and TLS
    remote.py       a front, and the gRPC server after it
    limits.py       every limit of a TCP listener
    front.py        accepts and authenticates connections before gRPC receives their bytes
    greeting.py     TLS and hello with one peer
    hello.py        proofs by which both sides show that they know the token
    client_hello.py  the client's side of the hello
    clients.py      the authenticated connections
    tokens.py       tokens with limited rights: created and revoked in the log's folder
    authority.py    the tokens that a served log accepts
    rights.py       the rights of a token
    authorization.py  the right that each call needs
    grants.py       limits clients to the producers and members that they opened
    budgets.py      limits on calls and bytes in flight, per client and in total
    http2.py        counts calls and messages of clients before gRPC receives them
    answers.py      fetches over TCP: read in parts, counted until they are sent
    locating.py     brokers that say where records are, without reading them
    splice.py       copies a connection's bytes between two sockets
    private.py      folders for sockets that only this user can access
    relay.py        the client's side of the front
    fork.py         keeps a forked child from using its parent's handles

This package imports none of them, because pyarrow.flight is slow to import and most programs that
open a log need only a part.
"""
