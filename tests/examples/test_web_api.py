"""The web API of the examples, called over HTTP."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from examples.web_api import serve
from tests.queries.shop import Running

Ask = Callable[[str], Any]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Function that calls the API, which serves the totals of a running shop."""
    path = str(tmp_path / "log")
    shop = Running(path, durability="os")
    shop.made.sales.append([(f"shop-{n}", n + 1) for n in range(9)])
    started: queue.Queue[ThreadingHTTPServer] = queue.Queue()
    api = threading.Thread(target=serve, args=(path, "shop/totals", 0, started.put))
    api.start()
    server = started.get(timeout=30)

    def get(url: str) -> Any:
        with urlopen(f"http://127.0.0.1:{server.server_port}/{url}", timeout=30) as answer:
            return json.load(answer)

    yield get
    server.shutdown()
    api.join(30)
    shop.stop()
    shop.made.app.close()


def test_the_api_returns_committed_totals(ask: Ask, eventually: Callable[..., None]) -> None:
    eventually(lambda: len(ask("")) == 9, what="all sales counted")
    assert ask("shop-3") == {"n": 1, "amount": 4}
    assert [entry["key"] for entry in ask("?from=shop-2&to=shop-7&limit=3")] == [
        "shop-2",
        "shop-3",
        "shop-4",
    ]
    for url, status in (("nowhere", 404), ("?limit=many", 400)):
        with pytest.raises(HTTPError) as met:
            ask(url)
        assert met.value.code == status
        assert json.load(met.value)["error"]
        met.value.close()
