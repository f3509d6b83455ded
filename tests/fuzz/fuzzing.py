"""Feed decoders with mutated bytes, for a limited time, and report inputs that they mishandle.

    python -m tests.fuzz.fuzzing <seconds> <seed> [<target> …]

It runs in a process of its own. The next input is always in a file, so that the parent knows the
input that killed the interpreter. Findings, at most one of a kind per target, are printed as lines
of JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from strandline.changelog.errors import StrandlineError
from tests.fuzz.targets import Target, targets

CORPUS = Path(__file__).parent / "corpus"
BOUND_SECONDS = 30
"""Maximum seconds for one input, on a machine that is busy."""
LARGEST = 1 << 16
"""Maximum number of bytes of an input."""
STRANGE = (0, 1, 0x7F, 0x80, 0xFF, 0xC0, 0xC1, 0xDD, 0xDF, 0x91, 0x5B, 0x7B)
NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def seeds(name: str, target: Target) -> list[bytes]:
    """Return the seeds of a target and the inputs found before."""
    kept = sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []
    return [*target.seeds, *(path.read_bytes() for path in kept)]


def changed(data: bytes, known: Sequence[bytes], chance: Random) -> bytes:
    """Return the data with a few bytes changed."""
    if data[:1] in (b"{", b"[") and chance.random() < 0.5:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.encode(_changed_value(msgspec.json.decode(data), chance))
    content = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _change(content, known, chance)
    return bytes(content[:LARGEST])


def _changed_value(value: Any, chance: Random) -> Any:
    """Return JSON with one of its values replaced, removed or repeated."""
    if isinstance(value, dict | list) and value and chance.random() < 0.9:
        place = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        match chance.randrange(8):
            case 0:
                del value[place]
            case 1 if isinstance(value, list):
                value.append(value[place])
            case _:
                value[place] = _changed_value(value[place], chance)
        return value
    return chance.choice([*NUMBERS, -1, -(2**63), 0.5, "", "x" * 300, "..", None, True, [], {}])


def _change(content: bytearray, known: Sequence[bytes], chance: Random) -> None:
    at = chance.randrange(len(content) + 1)
    count = min(chance.choice((1, 1, 2, 4, 8, 64)), len(content) - at)
    match chance.randrange(10):
        case 0 | 1 if at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        case 2 if at < len(content):
            content[at] = chance.choice(STRANGE)
        case 3:
            size = chance.choice((4, 8))
            number = chance.choice(NUMBERS) & (2 ** (8 * size) - 1)
            content[at : at + size] = number.to_bytes(size, chance.choice(("little", "big")))
        case 4:
            del content[at : at + count]
        case 5:
            content[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
        case 6:
            content[at:at] = content[at : at + count] * chance.choice((1, 2, 50))
        case 7:
            other = chance.choice(known)
            start = chance.randrange(len(other) + 1)
            content[at : at + count] = other[start : start + count]
        case 8:
            _change_a_number(content, chance)
        case _:
            content[at:at] = bytes([chance.choice(STRANGE)]) * chance.choice((1, 3, 2000))


def _change_a_number(content: bytearray, chance: Random) -> None:
    """Change a number written in decimal digits, as in JSON."""
    digits = [at for at, byte in enumerate(content) if 0x30 <= byte <= 0x39]
    if digits:
        at = chance.choice(digits)
        other = chance.choice(("-1", "0", "9" * 19, "9" * 30, "1e999", "null", "[]", '"x"'))
        content[at : at + 1] = other.encode()


class TookTooLong(BaseException):
    """A decoder takes too long. Not an Exception, so that no decoder catches it."""


def attempt(target: Target, data: bytes) -> str | None:
    """Run a target. Return the end of the traceback if it fails in a way that it must not."""
    try:
        target.run(data)
    except StrandlineError:
        return None
    except (Exception, TookTooLong):
        return traceback.format_exc(limit=-2)
    return None


def _too_long(*_: object) -> None:
    raise TookTooLong


def kind_of(found: str) -> str:
    """Return place and type of a finding, which identify its kind."""
    lines = [line for line in found.splitlines() if line.lstrip().startswith("File ")]
    return " ".join([*lines, found.strip().splitlines()[-1].partition(":")[0]])


def fuzz(
    target: Target, known: Sequence[bytes], seconds: float, chance: Random, trying: Path
) -> Iterator[tuple[int, bytes, str]]:
    """Yield the number of inputs tried, and each finding of a new kind."""
    seen: set[str] = set()
    end, count = time.monotonic() + seconds, 0
    pending = list(known)
    while pending or time.monotonic() < end:
        data = pending.pop() if pending else changed(chance.choice(known), known, chance)
        trying.write_bytes(data)
        signal.alarm(BOUND_SECONDS)
        found = attempt(target, data)
        signal.alarm(0)
        count += 1
        if found is not None and kind_of(found) not in seen:
            seen.add(kind_of(found))
            yield count, data, found
    yield count, b"", ""


def main(seconds: str, seed: str, *names: str) -> None:
    logging.disable()
    signal.signal(signal.SIGALRM, _too_long)
    chosen = {name: one for name, one in targets().items() if not names or name in names}
    trying = Path(f"/tmp/strandline-fuzz-{seed}-{time.monotonic_ns()}")
    for name, target in chosen.items():
        print(json.dumps({"target": name, "trying": str(trying)}), flush=True)
        share = float(seconds) / len(chosen)
        for count, data, found in fuzz(
            target, seeds(name, target), share, Random(f"{seed} {name}"), trying
        ):
            print(json.dumps({"count": count, "data": data.hex(), "found": found}), flush=True)
    trying.unlink(missing_ok=True)
    print(json.dumps({"end": True}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
