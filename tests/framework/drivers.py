"""Each driver that a test creates is closed after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.framework.testing import TestDriver


@pytest.fixture(autouse=True)
def drivers_are_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[TestDriver] = []
    init = TestDriver.__init__

    def recording(self: TestDriver, *args: object, **options: object) -> None:
        init(self, *args, **options)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(TestDriver, "__init__", recording)
    yield
    for driver in made:
        driver.close()
