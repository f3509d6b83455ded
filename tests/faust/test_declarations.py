"""The declarations that are recorded for tables, by their serializers. No app is started."""

from __future__ import annotations

from typing import Any

import faust
import pytest
from faust.serializers import codecs

from strandline.framework.faust.declarations import table_specs
from strandline.statestore.declaration import Declaration, declaration_of


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


def test_a_codec_is_known_by_its_class_and_not_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(codecs.json):
        pass

    monkeypatch.setitem(codecs.codecs, "json", Own())
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
