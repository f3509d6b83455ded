"""Reading committed values next to the running task: never uncommitted, torn, or older than
before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.changelog.clock import ManualClock
from strandline.statestore import PartitionStore, StorePosition, StoreSpec, open_store
from strandline.statestore.changelogged import Changelogged
from strandline.statestore.engine import Entry
from strandline.statestore.engines.memory import MemoryEngine
from strandline.statestore.keys import key_codec
from strandline.statestore.layers import Layers
from strandline.statestore.reader import PAGE_ENTRIES, CommittedReader, KeyRange

KEYS = [f"key-{n:03}" for n in range(40)]
NAMES = [key_codec(str).encode(key) for key in KEYS]
NEVER = 1_000_000
"""A value that is put and never committed."""

Eventually = Callable[..., None]
Commit = Callable[[dict[str, Any]], None]


@pytest.fixture(params=["rocksdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PartitionStore[str, int]]:
    spec: StoreSpec[str, int] = StoreSpec("n", key=str, value=int, engine=request.param)
    opened = open_store(spec, tmp_path / "store")
    yield opened
    opened.close()


def commit(store: PartitionStore[str, Any], changes: dict[str, Any]) -> None:
    """Commit these changes at the next offset."""
    for key, value in changes.items():
        if value is None:
            store.delete(key)
        else:
            store.put(key, value)
    batch = store.drain()
    before = store.position.offset if store.position else 0
    store.committed(before + len(batch or ()), 0)


def entries(reader: CommittedReader, bounds: KeyRange, limit: int = PAGE_ENTRIES) -> list[Entry]:
    """Scan to the end, page by page."""
    found: list[Entry] = []
    rest: KeyRange | None = bounds
    while rest is not None:
        page = reader.page(rest, limit)
        assert page is not None
        assert len(page.entries) <= limit
        found += page.entries
        rest = page.rest
    return found


def test_only_committed_values_are_read(store: PartitionStore[str, int]) -> None:
    reader = store.reader
    commit(store, {"a": 1, "b": 2})
    store["a"], store["c"] = 7, 7
    names = [key_codec(str).encode(key) for key in "abc"]
    found = reader.get_many(names)
    assert found is not None
    assert found.values == [b"\x01", b"\x02", None]
    assert found.position == store.position == StorePosition("", 0, 2)
    assert [value for _, value in entries(reader, KeyRange())] == [b"\x01", b"\x02"]
    store.discard()
    commit(store, {"a": None})
    assert [key for key, _ in entries(reader, KeyRange())] == [names[1]]
    assert reader.approximate_num_entries() is not None


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_in_pages_gives_each_entry_once_in_order(
    store: PartitionStore[str, int], reverse: bool
) -> None:
    reader = store.reader
    commit(store, {key: n for n, key in enumerate(KEYS)})
    store.checkpoint()
    commit(store, {key: n for n, key in enumerate(KEYS) if n % 3 == 0} | {KEYS[1]: None})
    wanted = [name for name in NAMES[5:35] if name != NAMES[1]]
    bounds = KeyRange(NAMES[5], NAMES[35], reverse)
    found = [key for key, _ in entries(reader, bounds, limit=7)]
    assert found == (wanted[::-1] if reverse else wanted)


def test_expired_values_are_not_read_and_a_page_skips_a_bounded_number_of_them() -> None:
    clock = ManualClock(1_000_000)
    spec: StoreSpec[str, int] = StoreSpec("n", value=int, ttl_ms=1_000, engine="memory")
    store = open_store(spec, clock=clock)
    reader = store.reader
    commit(store, dict.fromkeys(KEYS, 1))
    clock.advance(1_001)
    store.put("z", 2)
    batch = store.drain()  # draining removes some; the reader does not depend on it
    assert batch is not None
    store.discard()
    found = reader.get_many(NAMES)
    assert found is not None
    assert set(found.values) == {None}
    page = reader.page(KeyRange(), limit=3)
    assert page is not None
    assert page.entries == []
    assert page.rest == KeyRange().after_key(NAMES[29])


def test_a_closed_store_cannot_be_read(store: PartitionStore[str, int]) -> None:
    reader = store.reader
    commit(store, {"a": 1})
    store.close()
    assert reader.get_many(NAMES) is None
    assert reader.page(KeyRange()) is None
    assert reader.approximate_num_entries() is None


def test_closing_waits_for_a_read_and_makes_it_end_early(
    store: PartitionStore[str, int], eventually: Eventually
) -> None:
    commit(store, dict.fromkeys(KEYS, 1))
    gate = store._committed.gate
    assert gate.enter()
    closing = threading.Thread(target=store.close)
    closing.start()
    eventually(lambda: gate.is_shut, what="the gate shut")
    page = store.reader._page(KeyRange(), PAGE_ENTRIES)  # as a reader that is still inside
    assert page.entries == [(NAMES[0], b"\x01")]
    assert page.rest == KeyRange().after_key(NAMES[0])
    assert closing.is_alive()
    gate.leave()
    closing.join(10)
    assert not closing.is_alive()


class _Interrupted(Layers):
    """Runs an action right after the layers were sealed."""

    meanwhile: Callable[[], None] | None = None

    def seal(self) -> Any:
        sealed = super().seal()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return sealed


def test_a_checkpoint_between_reading_layers_and_engine_is_not_half_visible() -> None:
    """At that moment the layers have a but not b; without the check the result is old a, new b."""
    committed = Changelogged(MemoryEngine())
    store = open_store(StoreSpec("n", value=int, engine="memory"))
    store._committed = committed
    committed._layers = layers = _Interrupted()
    commit(store, {"a": 1, "b": 1})
    store.checkpoint()
    commit(store, {"a": 2})

    def newer() -> None:
        commit(store, {"a": 3, "b": 3})
        store.checkpoint()

    names = [key_codec(str).encode(key) for key in "ab"]
    for read in (
        lambda: committed.read(names),
        lambda: [value for _, value in committed.scan(b"\x01", None, reverse=False)],
    ):
        layers.meanwhile = newer
        assert read() == [b"\x03", b"\x03"]
        commit(store, {"a": 2})


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns fifty times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 50)
    yield
    sys.setswitchinterval(usual)


def test_under_load_every_read_is_one_commit_and_none_goes_back(
    store: PartitionStore[str, int], switching: None
) -> None:
    """Each commit n sets all keys to n. Checkpoints run on another thread."""
    reader = store.reader
    commit(store, dict.fromkeys(KEYS, 0))
    stop = threading.Event()
    wrong: list[str] = []
    reads = [0, 0, 0]

    def one() -> int:
        reads[0] += 1
        found = reader.get_many(NAMES[reads[0] % 40 : reads[0] % 40 + 1])
        assert found is not None
        return check(found.values)

    def many() -> int:
        reads[1] += 1
        found = reader.get_many(NAMES)
        assert found is not None
        return check(found.values)

    def scan() -> int:
        reads[2] += 1
        page = reader.page(KeyRange(reverse=reads[2] % 2 == 0))
        assert page is not None
        assert len(page.entries) == len(KEYS)
        return check([value for _, value in page.entries])

    def check(values: list[bytes | None]) -> int:
        """Check that all values are the same number, and return it."""
        assert len(set(values)) == 1, values
        return int(store._values.loads(values[0] or b""))

    def read(what: Callable[[], int]) -> None:
        last = 0
        try:
            while not stop.is_set():
                before = done[0]
                now = what()
                assert before <= now, f"read {now} after {before} was committed"
                assert last <= now < NEVER, f"read {now} after {last}"
                last = now
        except BaseException as error:
            wrong.append(f"{what.__name__}: {error!r}")
            stop.set()

    def move() -> None:
        while not stop.is_set():
            store.checkpoint()

    done = [0]
    threads = [threading.Thread(target=read, args=(what,)) for what in (one, many, scan, scan)]
    threads.append(threading.Thread(target=move))
    for thread in threads:
        thread.start()
    n = 0
    while not stop.is_set() and (n < 400 or min(reads) < 100) and n < 50_000:
        n += 1
        for key in KEYS:
            store.put(key, NEVER)
        if n % 2:
            store.discard()
        commit(store, dict.fromkeys(KEYS, n))
        done[0] = n
    stop.set()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert min(reads) >= 100
