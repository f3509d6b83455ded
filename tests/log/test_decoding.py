"""Types that several threads use for the first time at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "upstream.md"
PROGRAM = re.search(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
DIRECT = "msgspec.json.decode(DATA, type=kind)"
WAYS = {
    "json": "json_decoder(kind).decode(DATA)",
    "msgpack": "msgpack_decoder(kind).decode(PACKED)",
    "convert": 'converter(kind)({"inner": [{"a": 1, "b": [[1, 2]]}], "name": "x"})',
    "document": 'document.load(storage, "d", "manifest", kind)',
}
IMPORTS = """
from strandline.changelog.decoding import converter, json_decoder, msgpack_decoder
from strandline.changelog.embedded import document
from strandline.changelog.memory_storage import MemoryStorage

PACKED = msgspec.msgpack.encode(msgspec.json.decode(DATA))
storage = MemoryStorage()
storage.create("d").append(document.pack("manifest", DATA))
"""


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_threads_that_use_a_type_first_at_once_all_decode_it(way: str, repository: Path) -> None:
    """This program crashes msgspec without Strandline's decoders."""
    assert PROGRAM is not None
    program = PROGRAM[1].replace("1_500", "400")
    assert DIRECT in program
    assert "\n\n\ndef decode" in program
    program = program.replace(DIRECT, WAYS[way]).replace(
        "\n\n\ndef decode", IMPORTS + "\n\ndef decode"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=repository,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    assert ran.stdout.startswith(b"survived")
