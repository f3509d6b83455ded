"""A web API on a store of a running app, with nothing but the standard library.

python -m examples.web_api LOG APP/STORE [--port 8080]

GET /york                      the value of a key
GET /?from=h&to=m&limit=100    entries in the order of their keys
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

import strandline as sl

MAX_ENTRIES = 1_000
"""Maximum number of entries of one response."""
NONE = object()


def handler_of(store: sl.ReadOnlyStore[str, Any]) -> type[BaseHTTPRequestHandler]:
    """Return a class that answers requests from the store. It is used on many threads."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            key = unquote(parts.path.removeprefix("/"))
            options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            try:
                self._send(*(one(store, key) if key else some(store, options)))
            except sl.Retriable as error:  # a partition is moving to another worker
                self._send(503, {"error": str(error)})
            except (sl.InvalidRequest, ValueError) as error:
                self._send(400, {"error": str(error)})

        def _send(self, status: int, content: Any) -> None:
            body = json.dumps(msgspec.to_builtins(content, str_keys=True)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing."""

    return Handler


def one(store: sl.ReadOnlyStore[str, Any], key: str) -> tuple[int, Any]:
    """Return the status and the value of a key."""
    value = store.get(key, NONE)
    return (404, {"error": f"no key {key!r}"}) if value is NONE else (200, value)


def some(store: sl.ReadOnlyStore[str, Any], options: dict[str, str]) -> tuple[int, Any]:
    """Return the status and some entries."""
    limit = min(int(options.get("limit", MAX_ENTRIES)), MAX_ENTRIES)
    entries = store.range(options.get("from"), options.get("to"))
    return 200, [{"key": key, "value": value} for key, value in islice(entries, limit)]


def serve(log: str, store: str, port: int, ready: Callable[[ThreadingHTTPServer], None]) -> None:
    """Serve until the server is shut down; `ready` is called when it listens."""
    with sl.connect(log) as connection:
        handler = handler_of(connection.store(store))
        with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
            ready(server)
            server.serve_forever()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="examples.web_api", description=__doc__)
    parser.add_argument("log", help="a log's folder, or strandline://host:port")
    parser.add_argument("store", help="app/store")
    parser.add_argument("--port", type=int, default=8080)
    asked = parser.parse_args()
    serve(
        asked.log,
        asked.store,
        asked.port,
        lambda server: print(f"http://127.0.0.1:{server.server_port}"),
    )


if __name__ == "__main__":
    main()
