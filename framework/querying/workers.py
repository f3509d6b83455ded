"""Reads a store from the workers of its app: finds the worker of each partition and asks it.

The log's owner knows which worker owns which partition. Its answer is cached, and read again if a
worker does not serve a partition, because the partition has moved or is being restored. After the
deadline, the query raises `RequestTimedOut`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from strandline.changelog.broker import Broker
from strandline.changelog.clock import Clock
from strandline.changelog.errors import OwnerUnavailable, RequestTimedOut, Retriable
from strandline.changelog.records import PartitionOffsets, TopicPartition
from strandline.framework.querying.connections import Connections
from strandline.framework.querying.messages import (
    CountKeys,
    Describe,
    FoundKeys,
    GetKeys,
    KeyCounts,
    ReflectedPosition,
    Request,
    Scanned,
    ScanRange,
    StoreDescription,
)
from strandline.statestore.engine import StorePosition
from strandline.statestore.ordered import FIRST_KEY
from strandline.statestore.reader import KeyRange
from strandline.statestore.spec import changelog_topic

ATTEMPT_SECONDS = 3.0
"""Seconds to wait for one worker before looking up which worker owns the partition now."""
FIRST_PAUSE_S = 0.005
"""Seconds to wait before the second attempt; doubled after each attempt."""
MAX_PAUSE_S = 0.1
"""Maximum seconds between two attempts."""

MAX_KEY_BYTES = 1 << 20
"""Maximum bytes of keys in one request, unless a single key is larger."""

NOTHING = KeyRange(FIRST_KEY, FIRST_KEY)
"""Range without keys, of which only the position is of interest."""

NO_ANSWER_ERRORS = (OwnerUnavailable, RequestTimedOut)
"""Errors of a worker that does not answer."""


class NoWorkerAnswers(Exception):
    """No worker runs the app, or none of them answers queries here."""


class Source(Protocol):
    """Source of a store's committed state: its workers or its changelogs."""

    def read(
        self, partitions: Collection[int], keys: Sequence[bytes]
    ) -> dict[int, list[bytes | None]]:
        """Return the values of `keys` in each of the partitions; None for keys without a value."""
        ...

    def page(
        self, partition: int, bounds: KeyRange, limit: int
    ) -> tuple[Sequence[tuple[bytes, bytes]], KeyRange | None]:
        """Return entries from the beginning of `bounds`, and the remaining range, if any."""
        ...

    def position(self, partition: int) -> StorePosition | None:
        """Return the changelog position that later reads of a partition reflect; None if empty."""
        ...

    def count(self, partitions: Collection[int]) -> int:
        """Return the approximate number of keys in the partitions."""
        ...


class QueryCall(Protocol):
    """Sends a request to the worker at a URL and returns its answer."""

    def __call__(self, url: str, request: Request, answer: Any) -> Any: ...


class Fleet:
    """The workers of one app, and the partitions that they own. Thread-safe."""

    def __init__(
        self, app: str, broker: Broker, connections: Connections, clock: Clock, deadline: float
    ) -> None:
        self.app = app
        self._broker = broker
        self._connections = connections
        self._clock = clock
        self._deadline = deadline
        self._holders: Mapping[tuple[str, int], str] = {}
        """URL of the worker of each input partition."""
        self._urls: Sequence[str] = ()
        self._names: dict[str, str] = {}
        """Names of the workers for errors, by URL."""

    def describe(self, store: str) -> StoreDescription:
        """Return the description of a store. Raises NoWorkerAnswers, RequestTimedOut."""
        attempts = Attempts(self._connections, self._clock, self._deadline)
        while True:
            for url in self._urls:
                with contextlib.suppress(*NO_ANSWER_ERRORS):  # any worker can describe a store
                    description: StoreDescription = attempts.ask(
                        url, Describe(store), StoreDescription
                    )
                    return description
            self._prepare_next(attempts, lambda: f"description of store {self.app}/{store}")

    def changelog_ends(
        self, store: str, partitions: Collection[int]
    ) -> dict[int, PartitionOffsets]:
        """Return the end offsets and histories of partitions of a store's changelog."""
        topic = changelog_topic(self.app, store)
        ends = self._broker.offsets([TopicPartition(topic, number) for number in partitions])
        return {tp.partition: one for tp, one in ends.items()}

    def changelog_id(self, store: str) -> str:
        """Return the id of the topic of a store's changelog."""
        return self._broker.topic(changelog_topic(self.app, store)).topic_id

    def gather(
        self,
        store: str,
        inputs: Collection[str],
        partitions: Collection[int],
        ask: Callable[[QueryCall, str, list[int]], Collection[int]],
    ) -> None:
        """Call `ask` with each worker and its partitions until all partitions are answered.

        `ask` returns the partitions that the worker has answered.

        Raises NoWorkerAnswers, RequestTimedOut, and the errors of the workers.
        """
        left = sorted(partitions)
        attempts = Attempts(self._connections, self._clock, self._deadline)
        while True:
            for url, numbers in self._by_holder(left, inputs).items():
                try:
                    answered = ask(attempts.ask, url, numbers)
                except NO_ANSWER_ERRORS:
                    continue
                left = [number for number in left if number not in answered]
            if not left:
                return
            self._prepare_next(attempts, partial(self._unanswered, store, left, inputs))

    def _prepare_next(self, attempts: Attempts, what: Callable[[], str]) -> None:
        """Wait, and look up which workers own the partitions now.

        There is no wait if no worker was known. Raises NoWorkerAnswers, and RequestTimedOut, which
        says with `what` for which question there is no answer.
        """
        if attempts.is_over():
            raise RequestTimedOut(
                f"no worker has answered within {self._deadline:g} s: {what()}; "
                f"{self._why(attempts.silent)}"
            )
        if self._urls:
            attempts.wait()
        self._look_up()

    def _why(self, silent: Mapping[str, Retriable]) -> str:
        there = [url for url in silent if url in self._urls]
        if not there:
            return f"it is being restored: see `strandline groups members {self.app}`"
        told = (f"worker {self._names[url]} does not answer ({silent[url]})" for url in there)
        return (
            f"{', '.join(told)}; end it (the number in its name is its process id), or try again after "
            f"its session timeout"
        )

    def _look_up(self) -> None:
        holders: dict[tuple[str, int], str] = {}
        urls: list[str] = []
        for member in self._broker.describe_group(self.app).members:
            url = next(filter(self._connections.reaches, member.servers), None)
            if url is not None:
                urls.append(url)
                self._names[url] = member.client
                holders.update(dict.fromkeys(member.held, url))
        self._holders, self._urls = holders, urls
        if not urls:
            raise NoWorkerAnswers

    def _by_holder(self, left: Sequence[int], inputs: Collection[str]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number in left:
            for topic in inputs:
                url = self._holders.get((topic, number))
                if url is not None:
                    found.setdefault(url, []).append(number)
                    break
        return found

    def _unanswered(self, store: str, left: Sequence[int], inputs: Collection[str]) -> str:
        holders = {n: url for url, some in self._by_holder(left, inputs).items() for n in some}
        names = [f"{n} ({holders.get(n, 'no worker has it')})" for n in left]
        return f"store {self.app}/{store}, partition {', '.join(names)}"


class Attempts:
    """The attempts of one query to get an answer from workers, until its deadline."""

    __slots__ = ("_clock", "_connections", "_pause_s", "_until", "silent")

    def __init__(self, connections: Connections, clock: Clock, deadline: float) -> None:
        self._connections = connections
        self._clock = clock
        self._until = clock.monotonic() + deadline
        self._pause_s = FIRST_PAUSE_S
        self.silent: dict[str, Retriable] = {}
        """Error of each worker that has not answered its last request, by URL."""

    def ask(self, url: str, request: Request, answer: Any) -> Any:
        """Return the answer of type `answer` of the worker at `url`.

        Raises OwnerUnavailable, RequestTimedOut, and the worker's errors.
        """
        left = max(FIRST_PAUSE_S, self._until - self._clock.monotonic())
        try:
            result = self._connections.ask(url, request, answer, min(left, ATTEMPT_SECONDS))
        except NO_ANSWER_ERRORS as error:
            self.silent[url] = error
            raise
        if self.silent:
            self.silent.pop(url, None)
        return result

    def is_over(self) -> bool:
        """Return True after the deadline."""
        return self._clock.monotonic() >= self._until

    def wait(self) -> None:
        """Wait before the next attempt, each time longer."""
        threading.Event().wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)


class WorkerSource:
    """Implementation of `Source` for one store by its workers. Thread-safe.

    Its answers never go back in time: it remembers the position of each partition that its answers
    have reflected, and does not accept earlier ones. If the log was restored from a backup, its
    history is another one, and positions in the old history are forgotten.
    """

    def __init__(self, fleet: Fleet, store: str, inputs: Collection[str]) -> None:
        self._fleet = fleet
        self._store = store
        self._inputs = inputs
        self._seen: dict[int, ReflectedPosition] = {}
        self._changelog_id = ""
        """Id of the store's changelog: an address may by now be that of another app's worker."""
        self._lock = threading.Lock()

    def read(
        self, partitions: Collection[int], keys: Sequence[bytes]
    ) -> dict[int, list[bytes | None]]:
        found: dict[int, list[bytes | None]] = {}
        asked: set[int] = set()

        def ask(call: QueryCall, url: str, numbers: list[int]) -> Collection[int]:
            self._forget_other_histories(numbers, asked)
            whole = self._read_at(partial(call, url), numbers, keys)
            found.update(whole)
            return whole

        self._fleet.gather(self._store, self._inputs, partitions, ask)
        return found

    def _read_at(
        self, call: Callable[[Request, Any], Any], numbers: Sequence[int], keys: Sequence[bytes]
    ) -> dict[int, list[bytes | None]]:
        """Return the values at one worker, in several requests if need be.

        Partitions that the worker does not serve, or serves no longer, are left out.
        """
        some = list(numbers)
        request = GetKeys(self._store, some, _keys_that_fit(keys, 0), self._at_least(some))
        got: FoundKeys = call(request, FoundKeys)
        whole = len(keys)
        if got.full or len(request.keys) < whole:
            return self._read_on(call, request, got, keys)
        found: dict[int, list[bytes | None]] = {}
        for part in got.parts:
            self._note_position(part.partition, part.at)
            if len(part.values) == whole and part.partition in some:
                found[part.partition] = part.values
        return found

    def _read_on(
        self,
        call: Callable[[Request, Any], Any],
        request: GetKeys,
        got: FoundKeys,
        keys: Sequence[bytes],
    ) -> dict[int, list[bytes | None]]:
        """Read the rest of what one request or one answer is too small for."""
        numbers, done = request.partitions, 0
        found: dict[int, list[bytes | None]] = {}
        rest = some = list(numbers)
        while True:
            answered = {part.partition: part for part in got.parts if part.values or not keys}
            for number, part in answered.items():
                self._note_position(number, part.at)
                found.setdefault(number, []).extend(part.values)
            if not (done or got.full) and len(request.keys) == len(keys):
                break
            covered = _covered(got, some)
            rest = [
                number
                for number in rest
                if len(found.get(number, ())) < len(keys)
                and (number in answered or number not in covered)
            ]
            if not rest:
                break
            done = len(found.get(rest[0], ()))
            some = rest[:1] if done else rest
            request = GetKeys(self._store, some, _keys_that_fit(keys, done), self._at_least(some))
            got = call(request, FoundKeys)
        whole = len(keys)
        return {n: found[n] for n in numbers if n in found and len(found[n]) == whole}

    def page(
        self, partition: int, bounds: KeyRange, limit: int
    ) -> tuple[Sequence[tuple[bytes, bytes]], KeyRange | None]:
        scanned = self._scan(partition, bounds, limit)
        rest = None if scanned.rest is None else KeyRange(*scanned.rest, bounds.reverse)
        return scanned.entries, rest

    def position(self, partition: int) -> StorePosition | None:
        at = self._scan(partition, NOTHING, 1).at
        if not at.topic_id:
            return None
        return StorePosition(at.topic_id, at.leader_epoch, at.offset, incarnation=at.incarnation)

    def _scan(self, partition: int, bounds: KeyRange, limit: int) -> Scanned:
        """Return a page of a partition as its worker answers."""
        found: list[Scanned] = []
        asked: set[int] = set()

        def ask(call: QueryCall, url: str, numbers: list[int]) -> Collection[int]:
            self._forget_other_histories(numbers, asked)
            at_least = self._at_least(numbers).get(partition)
            lower, upper, reverse = bounds.lower, bounds.upper, bounds.reverse
            request = ScanRange(self._store, partition, lower, upper, reverse, limit, at_least)
            scanned: Scanned = call(url, request, Scanned)
            if not scanned.here:
                return ()
            _check_progress(bounds, scanned)
            self._note_position(partition, scanned.at)
            found.append(scanned)
            return (partition,)

        self._fleet.gather(self._store, self._inputs, [partition], ask)
        return found[0]

    def count(self, partitions: Collection[int]) -> int:
        found: dict[int, int] = {}

        def ask(call: QueryCall, url: str, numbers: list[int]) -> Collection[int]:
            counted: KeyCounts = call(url, CountKeys(self._store, numbers), KeyCounts)
            found.update(counted.counts)
            return found

        self._fleet.gather(self._store, self._inputs, partitions, ask)
        return sum(found.values())

    def _note_position(self, partition: int, at: ReflectedPosition) -> None:
        """Note the position of an answer. Raises OwnerUnavailable if it is of another store."""
        if self._seen.get(partition) == at:  # the usual case, without the lock
            return
        if at.topic_id not in ("", self._changelog_id):
            self._changelog_id = self._fleet.changelog_id(self._store)
            if at.topic_id != self._changelog_id:
                raise OwnerUnavailable(
                    f"a worker of another app, or of an earlier store {self._store!r}, answers at "
                    "the address that the group has for the partition"
                )
        with self._lock:
            before = self._seen.get(partition)
            if before is None or before.topic_id != at.topic_id or before.offset < at.offset:
                self._seen[partition] = at

    def _at_least(self, numbers: Collection[int]) -> dict[int, ReflectedPosition]:
        """Return the positions that answers must reflect, by partition."""
        seen = self._seen  # one look at each partition, so this needs no lock
        return {number: at for number in numbers if (at := seen.get(number)) is not None}

    def _forget_other_histories(self, numbers: Collection[int], asked: set[int]) -> None:
        """Forget positions in other histories of the log, for partitions that were asked in vain.

        After the log was restored from a backup, no worker reaches a position of the old history,
        except by accident. Only partitions in `asked` are checked, and `numbers` are added to it,
        so the first attempt of a query costs no call to the log.
        """
        if not asked:
            asked.update(numbers)
            return
        in_vain = [number for number in numbers if number in asked and number in self._seen]
        now = self._fleet.changelog_ends(self._store, in_vain) if in_vain else {}
        asked.update(numbers)
        with self._lock:
            for number, ends in now.items():
                if ends.divergence(self._seen[number]):
                    del self._seen[number]


def _check_progress(bounds: KeyRange, scanned: Scanned) -> None:
    """Raise OwnerUnavailable if the rest of a scan is not a smaller part of its range.

    A member of the group may answer anything. The same range again would be read for ever, without
    an entry at which the caller could stop.
    """
    if scanned.rest is None:
        return
    lower, upper = scanned.rest
    if bounds.reverse:
        is_smaller = lower == bounds.lower and _is_before(upper, bounds.upper)
    else:
        is_smaller = lower > bounds.lower and upper == bounds.upper
    if not is_smaller:
        raise OwnerUnavailable("a worker answers a scan with a range that it has read already")


def _is_before(end: bytes | None, other: bytes | None) -> bool:
    """Return True if a range ends before another one; None is no limit."""
    return end is not None and (other is None or end < other)


def _keys_that_fit(keys: Sequence[bytes], start: int) -> list[bytes]:
    """Return the keys from `start` on that fit into one request."""
    if len(keys) == 1:
        return list(keys)
    size, end = 0, start
    while end < len(keys) and (end == start or size + len(keys[end]) <= MAX_KEY_BYTES):
        size += len(keys[end])
        end += 1
    return list(keys[start:end])


def _covered(got: FoundKeys, asked: Sequence[int]) -> Collection[int]:
    """Return the partitions that an answer covers."""
    if not got.full or not got.parts or got.parts[-1].partition not in asked:
        return asked
    return asked[: asked.index(got.parts[-1].partition) + 1]
