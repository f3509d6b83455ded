"""A log with an endpoint, and a hostile client that has the token."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from strandline.changelog.embedded.owner import Owner
from strandline.changelog.flight.batches import ROW_SCHEMA, StreamMessage
from strandline.changelog.flight.connection import FlightConnection
from strandline.changelog.flight.connection_target import ConnectionTarget
from strandline.changelog.flight.grants import Subject
from strandline.changelog.flight.messages import (
    APPEND,
)
from strandline.changelog.flight.server import FlightEndpoint
from strandline.changelog.local_storage import LocalStorage

TOKEN = "a token of the tests"


class Stranger:
    """Sends bytes without any of a client's checks."""

    def __init__(self, target: ConnectionTarget) -> None:
        self.connection = FlightConnection(target, deadline=30, connect_within=30)

    def act(self, kind: str, body: bytes, subjects: Collection[Subject] = ()) -> bytes:
        """Return the answer to an action for which the grants of `subjects` are presented."""
        with self.connection._errors_translated(kind):
            action = flight.Action(kind, body)
            options = self.connection._options(subjects=subjects)
            result, *_grants = self.connection._client.do_action(action, options)
            return bytes(result.body)

    def get(self, ticket: bytes) -> Any:
        with self.connection._errors_translated("fetch"):
            client, options = self.connection._client, self.connection._options()
            return client.do_get(flight.Ticket(ticket), options).read_all()

    def put(
        self, rows: Sequence[StreamMessage], schema: Any = ROW_SCHEMA, command: bytes = APPEND
    ) -> bytes:
        """Return the answer to a stream of rows."""
        with self.connection._errors_translated("append"):
            descriptor = flight.FlightDescriptor.for_command(command)
            client, options = self.connection._client, self.connection._options()
            writer, answers = client.do_put(descriptor, schema, options)
            try:
                for row in rows:
                    writer.write_with_metadata(row.data, row.header)
                writer.done_writing()
                return bytes(memoryview(answers.read()))
            finally:
                writer.close()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(LocalStorage(tmp_path / "log"))
    owner.create_topic("t", config={"max.message.bytes": "1000000", "retention.ms": "-1"})
    yield owner
    owner.close()


@pytest.fixture
def target(owner: Owner, tmp_path: Path) -> Iterator[ConnectionTarget]:
    location = f"grpc+unix://{tmp_path}/s"
    endpoint = FlightEndpoint(owner, location, token=TOKEN, locate=owner.locate)
    yield ConnectionTarget(location, TOKEN, "the test's log")
    endpoint.close()


@pytest.fixture
def stranger(target: ConnectionTarget) -> Iterator[Stranger]:
    stranger = Stranger(target)
    yield stranger
    stranger.connection.close()


@pytest.fixture
def offsets_may_exceed_the_end() -> bool:
    return True
