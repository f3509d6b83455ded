"""The declarations that are recorded for tables, by their serializers. No app is started."""

from __future__ import annotations

import itertools
from typing import Any

import faust
import pytest
from faust.serializers import codecs
from msgspec.structs import replace

from strandline.framework.faust.declarations import table_specs
from strandline.statestore.declaration import Declaration, compare, declaration_of


class Order(faust.Record):
    """A model with Faust's serializer."""

    count: int


class Sealed(faust.Record, serializer="json|binary"):
    """A model with a serializer of two steps."""

    count: int


def declared(**options: Any) -> Declaration:
    """Return the declaration of a table with these options."""
    app = faust.App("declared", broker="strandline:///nowhere/log", store="strandline://")
    app.Table("totals", **options)
    [(spec, partitions)] = table_specs(app)
    assert (spec.name, partitions) == ("totals", options.get("partitions", 8))
    return declaration_of(spec)


@pytest.mark.parametrize(
    ("options", "key", "form", "serde"),
    [
        ({}, "json-ascii", "json", None),
        ({"partitions": 3}, "json-ascii", "json", None),
        ({"key_type": str, "value_type": int}, "json-ascii", "json", None),
        ({"key_type": Order, "value_type": Order}, "json-ascii", "json", None),
        ({"key_type": bytes, "value_type": bytes}, "raw", "bytes", None),
        ({"value_type": Sealed}, "json-ascii", "serde", "json (keys) and json|binary (values)"),
        ({"key_type": Sealed}, "raw", "serde", "json|binary (keys) and json (values)"),
    ],
)
def test_serializers_are_recorded(
    options: dict[str, Any], key: str, form: str, serde: str | None
) -> None:
    found = declared(**options)
    assert (found.key, found.form) == (key, form)
    assert found.serde == (serde and f"Faust's serializers {serde}")


class Own:
    """A window of the app's own."""

    expires = None


WINDOWS = {
    "none": (None, '{"window":null}'),
    "tumbling": (faust.TumblingWindow(10), '{"window":{"size":10.0,"step":10.0}}'),
    "hopping": (faust.HoppingWindow(10, 5), '{"window":{"size":10.0,"step":5.0}}'),
    "sliding": (faust.SlidingWindow(5, 6, 7), '{"window":{"after":6.0,"before":5.0}}'),
    "own": (Own(), '{"window":{"class":"Own"}}'),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_recorded_without_their_expiry(name: str) -> None:
    window, definition = WINDOWS[name]
    assert declared(window=window).definition == definition
    if name == "tumbling":
        assert declared(window=faust.TumblingWindow(10, expires=60)).definition == definition


@pytest.mark.parametrize(("was", "now"), [*itertools.product(WINDOWS, WINDOWS)])
def test_only_the_recorded_window_can_read_a_table(was: str, now: str) -> None:
    stored, wanted = (declared(window=WINDOWS[name][0]) for name in (was, now))
    change = compare(stored, wanted, can_upgrade=False)
    assert change.kind == ("same" if was == now else "refused")
    assert bool(change.reasons) == (was != now)


@pytest.mark.parametrize("name", WINDOWS)
def test_a_declaration_without_a_window_gets_that_of_the_table(name: str) -> None:
    """Declarations of earlier versions have none."""
    wanted = declared(window=WINDOWS[name][0])
    change = compare(replace(wanted, definition=None), wanted, can_upgrade=False)
    assert (change.kind, change.becomes) == ("wider", wanted)


def test_a_codec_is_known_by_its_class_and_not_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sorted(codecs.json):
        pass

    monkeypatch.setitem(codecs.codecs, "json", Sorted())
    assert declared().form == "serde"


def test_orjsons_text_is_another_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faust.utils.json.dumps", lambda value: f'"{value}"')
    assert declared().key == "json"


def test_only_own_tables_in_our_store_are_recorded() -> None:
    elsewhere = faust.App("declared", broker="strandline:///nowhere/log", store="memory://")
    elsewhere.Table("totals")
    assert table_specs(elsewhere) == []
    app = faust.App("declared", broker="strandline:///nowhere/log", store="strandline://")
    app.Table("other", changelog_topic=app.topic("another-name"))
    assert table_specs(app) == []
