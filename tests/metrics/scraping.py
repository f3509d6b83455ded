"""Scraping of an endpoint, and a strict parser of Prometheus's text format.

https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4. It also requires
counters called `…_total`, a HELP and a TYPE for everything, and whole histograms.
"""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)="(?P<value>(?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(
    rf"(?P<name>{NAME})(?:\{{(?P<labels>{LABEL}(?:,{LABEL})*)\}})? (?P<at>\S+)".replace(
        "?P<label>", ""
    ).replace("?P<value>", "")
)
ONE_LABEL = re.compile(LABEL)
ABOUT = re.compile(rf"# (?P<what>HELP|TYPE) (?P<name>{NAME}) (?P<text>.+)")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = tuple[tuple[str, str], ...]


@dataclass
class Family:
    """All samples of a metric."""

    name: str
    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def labels(self) -> set[tuple[str, ...]]:
        """Return the names of the labels of its samples, without those of the format."""
        return {
            tuple(name for name, _ in labels if name not in ("le", "quantile"))
            for _, labels in self.samples
        }


@dataclass
class Scrape:
    """Metrics scraped from an endpoint."""

    families: dict[str, Family]

    def __call__(self, name: str, **labels: object) -> float:
        """Return the sum of the samples with that name and these labels; KeyError if there is
        none."""
        wanted = {(key, str(value)) for key, value in labels.items()}
        found = [
            value
            for family in self.families.values()
            for (sample, has), value in family.samples.items()
            if sample == name and wanted <= set(has)
        ]
        if not found:
            raise KeyError(f"{name} {labels}")
        return sum(found)


def scrape(url: str) -> Scrape:
    """Scrape an endpoint."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return parsed(answer.read().decode())


def parsed(text: str) -> Scrape:
    """Parse the text format. Raises AssertionError if it is invalid."""
    assert text == "" or text.endswith("\n")
    families: dict[str, Family] = {}
    for name, lines in groupby(_located(text), key=lambda line: line[0]):
        assert name not in families, f"{name} comes in two places"
        families[name] = _family(name, [line for _, line in lines])
    return Scrape(families)


def _located(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line with its metric, which the last HELP named."""
    current = ""
    for line in text.splitlines():
        about = ABOUT.fullmatch(line)
        if about is not None and about["what"] == "HELP":
            current = about["name"]
        yield current, line


def _family(name: str, lines: list[str]) -> Family:
    head, tail = lines[:2], lines[2:]
    kinds = [match["text"] for line in head[1:] if (match := ABOUT.fullmatch(line)) is not None]
    assert [line.split()[1] for line in head] == ["HELP", "TYPE"], head
    assert kinds[0] in ("counter", "gauge", "histogram", "summary"), head
    family = Family(name, kinds[0])
    for line in tail:
        sample, labels, value = _sample(line)
        assert sample in [name + s for s in SUFFIXES.get(family.kind, ("",))], line
        assert (sample, labels) not in family.samples, f"twice: {line}"
        family.samples[sample, labels] = value
    _check(family)
    return family


def _sample(line: str) -> tuple[str, Labels, float]:
    match = SAMPLE.fullmatch(line)
    assert match is not None, f"no sample: {line}"
    found = [
        (m["label"], _unescaped(m["value"])) for m in ONE_LABEL.finditer(match["labels"] or "")
    ]
    assert len({name for name, _ in found}) == len(found), line
    assert re.fullmatch(r"[+-]?(Inf|NaN|\d.*)", match["at"]), line
    return match["name"], tuple(found), float(match["at"])


def _unescaped(text: str) -> str:
    return re.sub(r'\\["\\n]', lambda match: ESCAPED[match[0]], text)


def _check(family: Family) -> None:
    values = family.samples.values()
    if family.kind == "counter":
        assert family.name.endswith("_total"), family.name
        assert all(value >= 0 and value == int(value) for value in values), family
    if family.kind == "histogram":
        for labels in {tuple(p for p in has if p[0] != "le") for _, has in family.samples}:
            _check_histogram(family, labels)


def _check_histogram(family: Family, labels: Labels) -> None:
    buckets = [
        (float(dict(has)["le"]), value)
        for (name, has), value in family.samples.items()
        if name.endswith("_bucket") and tuple(p for p in has if p[0] != "le") == labels
    ]
    assert all(low < high and a <= b for (low, a), (high, b) in pairwise(buckets)), buckets
    assert buckets[-1] == (math.inf, family.samples[f"{family.name}_count", labels])
    assert f"{family.name}_sum", labels in family.samples
