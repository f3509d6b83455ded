"""One owner, many attached: the log served over Arrow Flight, and the clients that use it so.

    messages.py     what crosses the wire, and its version
    requests.py     the calls of a Broker as messages
    batches.py      Arrow batches of any schema in one stream
    endpoint.py     owner.json: where the owner of a folder listens
    address.py      the URLs of remote logs
    sessions.py     which client is alive, and which transactions it has open
    server.py       FlightEndpoint: a Broker for other processes
    connection.py   one connection: its session stream, its calls and their deadlines
    files.py        fetching by reading the log's files, where they are within reach
    client.py       FlightBroker: a Broker in another process
    guard.py        a transaction lives and dies with the connection it began on
    failover.py     FailoverBroker: goes on with the next owner when one dies
    owning.py       an Owner with its endpoint
    attach.py       owning or attaching, by role
    background.py   an owner of its own for short-lived tools
    serve.py        TCP, with token and TLS
    remote.py       a front, and a server for what the front lets in
    limits.py       every limit of a TCP listener
    front.py        accepts connections, and authenticates them before gRPC sees a byte
    greeting.py     one peer's way through TLS and hello
    hello.py        both sides prove that they know the token
    clients.py      the authenticated connections
    tokens.py       tokens with fewer rights than all: made and revoked in the log's folder
    authority.py    which tokens a served log accepts
    rights.py       what a token may do
    authorization.py  which right each call needs
    grants.py       a client acts on the producers and members that it opened
    budgets.py      what these have in flight, each and together
    http2.py        counts their calls and messages before gRPC sees them
    answers.py      fetches over TCP: read in parts, counted until they are sent
    splice.py       passes a connection's bytes between two sockets
    private.py      folders for sockets that only this user may reach
    relay.py        the client's side of the front
    fork.py         a forked child must not use its parent's handles

Nothing is imported here: pyarrow.flight is heavy, and most programs that open a log for a
moment need only a part.
"""
