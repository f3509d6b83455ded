"""Client of a schema registry: Confluent's, or a compatible one (Apicurio, Karapace, Redpanda).

Answers are cached for ever, because a schema id never changes its meaning. A registry that is down
therefore delays only requests for schemas that are not yet known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from strandline.changelog.clock import SystemClock
from strandline.changelog.errors import (
    InvalidConfig,
    InvalidRecord,
    MissingDependency,
    RegistryUnavailable,
    SchemaMismatch,
    StrandlineError,
    Unauthenticated,
)
from strandline.changelog.hosts import split_url
from strandline.changelog.secret import Secret, is_secret, masked

T = TypeVar("T")

MAX_ABANDONED = 4
"""Maximum number of calls of a registry that go on after their deadline."""
MAX_ANSWER_BYTES = 16 << 20
"""Maximum number of bytes of one response of a registry. Confluent's accepts schemas of 1 MB."""
MAX_ERROR_CHARS = 500
"""Maximum number of characters of a response that an error shows."""
MAX_SCHEMA_ID = (1 << 32) - 1
"""Largest id that the header of a value can hold."""


class RegisteredSchema(NamedTuple):
    """A schema in a registry."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str


class SchemaRegistry:
    """A schema registry by its URL. Thread-safe; it connects at the first use.

    A schema is registered under `<topic>-value` (or `-key`) when the first value is written. A
    response may have at most 16 MiB. A call takes at most three times the timeout: to connect,
    until the response begins, and until it is complete.

    >>> SchemaRegistry("http://127.0.0.1:8081", timeout=5)
    SchemaRegistry('http://127.0.0.1:8081')

    Args:
        url: `http://host:port`, `https://…`, or `mock://name` for a registry in this process, for
            tests.
        auto_register: True, the default, registers a schema that is missing. False requires that it
            is registered already.
        **properties: Settings of Confluent's client, with underscores for dots:
            `basic_auth_user_info`, `ssl_ca_location`, … The defaults are `timeout=10` (seconds) and
            `max_retries=0`, because apps retry themselves.

    Raises:
        InvalidConfig: The URL is not one of a registry.
        MissingDependency: Confluent's client is not installed; raised at the first use.
    """

    def __init__(self, url: str, *, auto_register: bool = True, **properties: Any) -> None:
        if split_url(url).scheme not in ("http", "https", "mock"):
            raise InvalidConfig(
                f"a schema registry is http://host:port, https://… or mock://name, got {masked(url)!r}"
            )
        self._address = Secret(url)
        self.url = masked(url)
        """The URL without user and password."""
        self.auto_register = auto_register
        given = {name.replace("_", "."): value for name, value in properties.items()}
        self._properties = {
            name: Secret(value) if isinstance(value, str) and is_secret(name) else value
            for name, value in {"max.retries": 0, "timeout": 10, **given}.items()
        }
        secrets = [value for value in self._properties.values() if isinstance(value, Secret)]
        self._secrets = [*secrets, *_in_url(url)]
        self._lock = threading.Lock()
        self._client: Any = None
        self._ids: dict[tuple[str, str], int] = {}
        self._schemas: dict[int, RegisteredSchema] = {}
        self._calls = _BoundedCalls(self.url)

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def client(self) -> Any:
        """Return Confluent's client of the registry, which the first call creates.

        Returns:
            A `confluent_kafka.schema_registry.SchemaRegistryClient`.

        Raises:
            MissingDependency: The package is not installed.
            InvalidConfig: The client refuses a property.
        """
        with self._lock:
            if self._client is None:
                self._client = _connected(self._address, self._properties, self._secrets)
            return self._client

    def id_of(self, subject: str, schema: RegisteredSchema) -> int:
        """Return the id of a schema under a subject, and register it if necessary.

        Args:
            subject: Name that the schema is registered under.
            schema: The schema.

        Raises:
            SchemaMismatch: The registry refuses the schema.
            RegistryUnavailable: The registry does not respond as one.
        """
        # No lock: two threads may both request an id, and receive the same one.
        known = self._ids.get((subject, schema.text))
        if known is None:
            known = self._ids[subject, schema.text] = self._request_id(subject, schema)
        return known

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id.

        Args:
            schema_id: Id from the header of a value.

        Raises:
            InvalidRecord: The registry has no such id.
            RegistryUnavailable: The registry does not respond as one.
        """
        known = self._schemas.get(schema_id)
        if known is None:
            asked = f"schema id {schema_id}"
            known = self.ask(lambda client: _schema_of(client.get_schema(schema_id)), asked)
            self._schemas[schema_id] = known
        return known

    def ask(self, call: Callable[[Any], T], what: str) -> T:
        """Call Confluent's client and translate its errors.

        A response that no registry gives, such as a page of a proxy, is no answer: it may be right
        later, so it must not decide what becomes of a record.

        Args:
            call: Function of the client.
            what: Subject of the call, for messages.

        Raises:
            RegistryUnavailable: The registry does not respond as one.
            SchemaMismatch: The registry refuses the schema.
            InvalidRecord: The schema id does not exist.
            Unauthenticated: The credentials are wrong.
            MissingDependency: Confluent's client is not installed.
        """
        client = self.client()
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return self._calls.run(lambda: call(client), self._deadline_s())
        except SchemaRegistryError as error:
            raise self._refusal(error, what) from error
        except ModuleNotFoundError as error:
            raise MissingDependency(_INSTALL) from error
        except (StrandlineError, MemoryError):
            raise
        except Exception as error:
            self._renew(client)
            said = self._shown(repr(error))
            raise RegistryUnavailable(
                f"{self.url} does not answer as a schema registry, and {what} is not known yet: {said}"
            ) from None

    def _shown(self, text: str) -> str:
        """Return the beginning of a text. Secrets are masked first: one that is cut is not found."""
        return masked(text, self._secrets)[:MAX_ERROR_CHARS]

    def _renew(self, client: Any) -> None:
        """Use a new client, because this one keeps what it was answered."""
        with self._lock:
            if self._client is client:
                self._client = None

    def _deadline_s(self) -> float:
        """Return the maximum seconds of a call. The client has accepted the properties before."""
        timeout: Any = self._properties["timeout"]
        retries: Any = self._properties["max.retries"]
        return 3 * float(timeout) * (1 + int(retries))

    def _request_id(self, subject: str, schema: RegisteredSchema) -> int:
        def ask(client: Any) -> int:
            from confluent_kafka.schema_registry import Schema

            theirs = Schema(schema.text, schema.kind)
            if self.auto_register:
                return _checked_id(client.register_schema(subject, theirs))
            return _checked_id(client.lookup_schema(subject, theirs).schema_id)

        return self.ask(ask, f"the schema of {subject}")

    def _refusal(self, error: Any, what: str) -> Exception:
        """Return the error for an HTTP status.

        Errors of a registry have a code that begins with the status; those of a proxy have none.
        """
        status, code = error.http_status_code, error.error_code
        said = f"{self.url} says of {what}: {self._shown(str(error))}"
        if status in (401, 403):
            return Unauthenticated(f"{said}; give SchemaRegistry(…) the right credentials")
        if status in (404, 409, 422) and not _is_of_registry(status, code):
            return RegistryUnavailable(f"{said}; is the URL that of a registry?")
        if status == 404 and what.startswith("schema id"):
            return InvalidRecord(
                f"{said}; it was written with another registry, or not in this form"
            )
        if status == 404:
            fix = "register it first, or let auto_register be True"
            return SchemaMismatch(f"{said}; {fix}")
        if status in (409, 422):
            fix = "let it be compatible with the last one, or write to another topic"
            return SchemaMismatch(f"{said}; {fix}")
        return RegistryUnavailable(said)


def registry_of(given: SchemaRegistry | str | os.PathLike[str] | None) -> SchemaRegistry | None:
    """Return the registry of an app's setting."""
    if given is None or isinstance(given, SchemaRegistry):
        return given
    return SchemaRegistry(str(given))


def chosen(
    given: SchemaRegistry | str | bool | None, apps: SchemaRegistry | None, *, by_default: bool
) -> SchemaRegistry | None:
    """Return the registry of one topic: that of its form, the app's, or none.

    `given` is the form's setting: True is the app's registry, False is none. None is the app's if
    the form uses one `by_default`.
    """
    if given is False or (given is None and not by_default):
        return None
    if given is True and apps is None:
        raise InvalidConfig("registry=True is the app's schema registry, and the app has none")
    return apps if given in (True, None) else registry_of(given)  # type: ignore[arg-type]


def _is_of_registry(status: int, code: object) -> bool:
    """Return True for an error code of a registry, such as 40403 for an unknown schema.

    409 and 422 are codes too. 404 is none: a registry has it for a path that it does not know.
    """
    return isinstance(code, int) and (code // 100 == status or code == status != 404)


def _schema_of(found: Any) -> RegisteredSchema:
    """Return the schema of a response. Raises ValueError for a response that has none."""
    if not isinstance(found.schema_str, str) or not isinstance(found.schema_type, str | None):
        raise ValueError(f"a schema was expected, got {found.schema_str!r}, {found.schema_type!r}")
    return RegisteredSchema(found.schema_type or "AVRO", found.schema_str)


def _checked_id(found: object) -> int:
    """Return the id of a response. Raises ValueError for a response that has none."""
    if type(found) is not int or not 0 <= found <= MAX_SCHEMA_ID:
        raise ValueError(f"a schema id was expected, got {found!r}")
    return found


_INSTALL = "a schema registry needs Confluent's client: pip install 'strandline[registry]'"
_mocks: dict[str, Any] = {}
_lock = threading.Lock()


def _in_url(url: str) -> list[Secret]:
    """Return the password in a URL, in its quoted and unquoted forms."""
    written = split_url(url).password or ""
    return [Secret(one) for one in {written, unquote(written)} if one]


def _connected(address: Secret, properties: dict[str, Any], secrets: Sequence[Secret]) -> Any:
    url = address.reveal()
    given = {n: v.reveal() if isinstance(v, Secret) else v for n, v in properties.items()}
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ModuleNotFoundError as error:
        raise MissingDependency(_INSTALL) from error
    try:
        if not url.startswith("mock://"):
            client = SchemaRegistryClient({"url": url, **given})
            _bound(client, float(given["timeout"]))
            return client
        with _lock:
            if url not in _mocks:
                _mocks[url] = SchemaRegistryClient.new_client({"url": url})
            return _mocks[url]
    except (ValueError, TypeError, OSError) as error:
        said = masked(str(error), secrets)
        raise InvalidConfig(f"schema registry {masked(url)}: {said}") from None


class _BoundedCalls:
    """Calls with a total deadline. Thread-safe.

    The HTTP client has no deadline for the head of a response, which may come byte by byte. So each
    call has a thread of its own, which is abandoned after the deadline.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._abandoned: list[threading.Thread] = []
        """Threads whose calls were not over in time; at most `MAX_ABANDONED` of them run."""
        self._lock = threading.Lock()

    def run(self, call: Callable[[], T], seconds: float) -> T:
        """Return the result of a call, or raise its error. Raises RegistryUnavailable if it is late."""
        with self._lock:
            self._abandoned = [thread for thread in self._abandoned if thread.is_alive()]
            if len(self._abandoned) >= MAX_ABANDONED:
                raise RegistryUnavailable(
                    f"{self._url} has begun {MAX_ABANDONED} responses that do not end; is the URL that "
                    "of a registry?"
                )
        outcome: Future[T] = Future()
        thread = threading.Thread(target=_run, args=(call, outcome), daemon=True)
        thread.start()
        wait([outcome], seconds)
        if not outcome.done():
            with self._lock:
                self._abandoned.append(thread)
            raise RegistryUnavailable(f"{self._url} has not answered within {seconds:g} s")
        return outcome.result()


def _run(call: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:
        outcome.set_exception(error)


def _bound(client: Any, timeout_s: float) -> None:
    """Limit the bytes and seconds of a response.

    The HTTP client itself waits `timeout_s` for each part of a response, with any number of parts,
    and decompresses compressed ones without a limit.
    """

    def bound(response: Any) -> None:
        packed = response.headers.get("content-encoding", "identity")
        if packed != "identity":
            raise RegistryUnavailable(
                f"a schema registry answers with {packed!r}, although plain bytes were requested"
            )
        # The HTTP library has several names (httpx, httpx2) and accepts only its own class.
        base = next(c for c in type(response.stream).__mro__ if c.__name__ == "SyncByteStream")
        kind = type("Bounded", (_Bounded, base), {})
        response.stream = kind(response.stream, timeout_s)

    session = client._rest_client.session
    session.headers["Accept-Encoding"] = "identity"
    session.event_hooks = {"request": [], "response": [bound]}


class _Bounded:
    """Bytes of a response, bounded in number and time. Raises RegistryUnavailable."""

    def __init__(self, stream: Any, timeout_s: float) -> None:
        self._stream = stream
        self._timeout_s = timeout_s

    def __iter__(self) -> Iterator[bytes]:
        clock, left = SystemClock(), MAX_ANSWER_BYTES
        until = clock.monotonic() + self._timeout_s
        for part in self._stream:
            left -= len(part)
            if left < 0:
                raise RegistryUnavailable(
                    f"a schema registry answers with more than {MAX_ANSWER_BYTES:,} bytes; is the URL "
                    "that of a registry?"
                )
            if clock.monotonic() > until:
                raise RegistryUnavailable(
                    f"a schema registry has not finished its answer within {self._timeout_s:g} s"
                )
            yield part

    def close(self) -> None:
        self._stream.close()
