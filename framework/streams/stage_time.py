"""Event time of one partition of a stage: the watermarks of its sources, kept in a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.changelog.arrays import of_items
from strandline.framework.store import Store, columns_of
from strandline.framework.streams.watermark import (
    NO_WATERMARK,
    SourceWatermarks,
    advanced,
    running,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

FLOOR = ""
"""Key of the watermark that was reached in common, which never goes back."""
ROWS = "rows "
"""Beginning of the keys of the numbers of rows of open windows, followed by the operator."""
IDLE = "idle "
"""Beginning of the keys that say whether a source is idle (1) or woken (2), followed by it."""
WOKEN = 2


class StageTime:
    """Watermarks of the sources of one partition of a stage. Their stores commit them.

    A source is a partition of a topic that the stage reads, or a partition of a stage that writes an
    internal topic which this one reads.
    """

    def __init__(self, stores: Sequence[Store[str, int]], sources: Iterable[str]) -> None:
        """Begin without watermarks.

        Args:
            stores: Stores of the watermarks, by source. All have the same contents, unless an
                operator was added to the stage; then the greatest watermarks count.
            sources: Sources that are known from the beginning, and hold the watermark back.
        """
        self._stores = tuple(stores)
        self._sources = tuple(sources)
        self._active: dict[str, bool] = {}
        """True for each source that had records since the last check of idleness."""
        self._idle: set[str] = set()
        self._woken: set[str] = set()
        self._marks: SourceWatermarks | None = None
        self._written: dict[str, int] = {}
        self._rows: dict[str, int] = {}

    @property
    def watermark(self) -> int:
        """Watermark in ms since the epoch; NO_WATERMARK if it is not known yet."""
        return self._loaded.value

    @property
    def sources(self) -> list[str]:
        """Sources that are known."""
        return [str(source) for source in self._loaded.state()[1]]

    def of(self, source: str) -> int:
        """Return the watermark of one source in ms."""
        return self._loaded.state()[1].get(source, NO_WATERMARK)

    def read(
        self, source: str, times: npt.NDArray[np.int64], delay_ms: int
    ) -> npt.NDArray[np.int64]:
        """Take the times of records of a source; return its watermark before each of them."""
        before = self.of(source)
        self.reached(source, advanced(times, before, delay_ms))
        return running(times, before, delay_ms)

    def reached(self, source: str, watermark: int) -> None:
        """Note the watermark of a source that had records.

        If all sources were idle, the others hold the watermark back again. Their records may have
        been written as early, and be read later: none of them is known to have nothing.
        """
        marks = self._loaded
        if self._idle and self.is_idle:
            self._woken |= self._idle - {source}
            self._idle.clear()
            marks.set_idle(*self._woken, idle=False)
        self._active[source] = True
        self._idle.discard(source)
        self._woken.discard(source)
        if source not in marks.state()[1]:
            marks.restored(marks.value, {source: NO_WATERMARK})
        marks.advance(source, watermark)

    def note_rows(self, sources: Iterable[str]) -> None:
        """Note that there were rows of one of these sources, which does not say how far it is."""
        self._active |= dict.fromkeys(sources, True)

    def raise_to(self, watermark: int, sources: Iterable[str]) -> None:
        """Raise sources to a watermark, because the windows before it are to be closed.

        A source that is idle stays so.
        """
        self._loaded.raise_to(watermark, sources)

    def take_active(self) -> set[str]:
        """Return the sources that had records since the last call."""
        found = {source for source, is_active in self._active.items() if is_active}
        self._active = {}
        return found

    def set_idle(self, source: str) -> None:
        """Let a source no longer hold the watermark back, until it has records again."""
        marks = self._loaded
        self._woken.discard(source)
        if source not in self._idle:
            self._idle.add(source)
            marks.set_idle(source, idle=True)

    @property
    def woken(self) -> frozenset[str]:
        """Sources that hold the watermark back because another one is active after a silence."""
        self._load()
        return frozenset(self._woken)

    @property
    def is_idle(self) -> bool:
        """True if no source holds the watermark back."""
        sources = self.sources  # they are read from the store first, and what is idle with them
        return self._idle.issuperset(sources)

    def rows_of(self, name: str) -> int | None:
        """Return the number of rows of an operator's open windows; None if it was never written."""
        self._load()
        return self._rows.get(name)

    def write(self, rows: Mapping[str, int]) -> None:
        """Write what has changed to the store.

        Args:
            rows: Number of rows of open windows by operator.
        """
        self._rows = dict(rows)
        value, marks = self._loaded.state()
        now = {str(source): mark for source, mark in {**marks, FLOOR: value}.items()}
        now |= {f"{IDLE}{source}": self._silence_of(source) for source in map(str, marks)}
        now |= {f"{ROWS}{name}": number for name, number in rows.items()}
        changed = {key: int(mark) for key, mark in now.items() if self._last(key) != mark}
        if changed:
            keys = of_items(changed, pa.string())
            marks_of_keys = of_items(changed.values(), pa.int64())
            for store in self._stores:
                columns_of(store).put_batch(keys, marks_of_keys)
            self._written |= changed

    def _silence_of(self, source: str) -> int:
        return WOKEN if source in self._woken else int(source in self._idle)

    def _last(self, key: str) -> int:
        """Return what the stores have for a key, or what stands for a key that they do not have."""
        return self._written.get(key, 0 if key.startswith((IDLE, ROWS)) else NO_WATERMARK)

    def forget(self) -> None:
        """Read the watermarks from the store again when they are needed."""
        self._marks = None
        self._written = {}

    @property
    def _loaded(self) -> SourceWatermarks:
        return self._load()

    def _load(self) -> SourceWatermarks:
        if self._marks is None:
            found = self._read()
            floor = found.pop(FLOOR, NO_WATERMARK)
            rows = {key for key in found if key.startswith(ROWS)}
            self._rows = {key.removeprefix(ROWS): found.pop(key) for key in rows}
            keys = [key for key in found if key.startswith(IDLE)]
            silent = {key.removeprefix(IDLE): found.pop(key) for key in keys}
            self._idle = {source for source, kind in silent.items() if kind not in (0, WOKEN)}
            self._woken = {source for source, kind in silent.items() if kind == WOKEN}
            self._marks = SourceWatermarks(self._sources)
            # A source that the stage does not read any more must not hold the watermark back.
            self._marks.restored(floor, {at: found[at] for at in self._sources if at in found})
            self._idle &= {*self._sources}
            self._woken &= {*self._sources}
            if self._idle:
                self._marks.set_idle(*self._idle, idle=True)
        return self._marks

    def _read(self) -> dict[str, int]:
        """Return the contents of the stores, and note which of them all stores have."""
        contents = [dict(store.all()) for store in self._stores]
        found: dict[str, int] = {}
        for content in contents:
            found |= {key: max(mark, found.get(key, mark)) for key, mark in content.items()}
        same = {key: m for key, m in found.items() if all(c.get(key) == m for c in contents)}
        self._written = same
        return found
