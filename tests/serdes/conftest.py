"""Schema registries: a real one, shared by all tests, and one that fails on request."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NoReturn

import pytest

from strandline.framework.formats.registry import SchemaRegistry
from tests.framework.drivers import drivers_are_closed

__all__ = ["drivers_are_closed"]

_names = itertools.count()


@pytest.fixture(scope="session")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of Apicurio Registry (`benchmarks/schema_registry.py`), or STRANDLINE_TEST_REGISTRY."""
    if importlib.util.find_spec("confluent_kafka") is None:
        _missing("the package confluent-kafka is not installed")
    if url := os.environ.get("STRANDLINE_TEST_REGISTRY"):
        yield url
        return
    from benchmarks.schema_registry import registry

    with ExitStack() as closing:
        try:
            url = closing.enter_context(registry(tmp_path_factory.mktemp("registry") / "apicurio"))
        except FileNotFoundError as error:
            _missing(str(error))
        yield url


@pytest.fixture
def registry(registry_url: str) -> SchemaRegistry:
    """A new client, which has no schema cached yet."""
    return SchemaRegistry(registry_url, timeout=10)


@pytest.fixture
def down() -> SchemaRegistry:
    """A client of a registry that does not answer."""
    return SchemaRegistry("http://127.0.0.1:1", timeout=1)


@pytest.fixture
def name() -> str:
    """An unused topic name."""
    return f"topic-{os.getpid()}-{next(_names)}"


def _missing(why: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why}, and CI=true asks for a registry")
    pytest.skip(why)
