"""`python -m examples.flights.wow.show`: watch, and press k, z, d or q.

With `--script` the keys are pressed automatically: "3 k 4 z 5 z 3 d 3 k 4 q" waits 3 s, presses k,
and so on. `--cast FILE` records the screen, `--picture FILE.svg` saves its last frame.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import select
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from examples.flights.wow.cast import Recorder
from examples.flights.wow.screen import drawn
from examples.flights.wow.stage import ShowStage

FRAME_SECONDS = 0.3
WIDTH, HEIGHT = 100, 26
SETTLE_SECONDS = 20.0
"""Maximum seconds to wait for pending outputs after q."""

Press = Callable[[], str]
"""Function that returns the key pressed since its last call; empty if none was."""


def main() -> int:
    """Run the show; return 1 if a flight was lost or doubled with exactly_once."""
    given = _arguments()
    recorder = Recorder(sys.stdout, width=WIDTH, height=HEIGHT, title="Strandline: make wow")
    console = Console(
        file=recorder, force_terminal=True, width=WIDTH, height=HEIGHT, highlight=False
    )
    with (
        tempfile.TemporaryDirectory(prefix="strandline-wow-") as folder,
        ShowStage(Path(folder) / "log") as stage,
        _keys(given.script) as press,
        Live(console=console, auto_refresh=False, screen=given.script is None) as live,
    ):
        always_exact = _watch(stage, press, live)
        frame = drawn(stage)
        witness = stage.witness
        right = not always_exact or not (witness.lost or witness.doubled or witness.differing)
    if given.cast:
        recorder.save(given.cast)
    if given.picture:
        picture = Console(record=True, width=WIDTH, file=io.StringIO())
        picture.print(frame)
        picture.save_svg(str(given.picture), title="make wow")
    return int(not right)


def _watch(stage: ShowStage, press: Press, live: Live) -> bool:
    """Run until q is pressed and pending outputs have arrived.

    Return True if the guarantee was exactly_once throughout.
    """
    always_exact, until = True, 0.0
    blows = {"k": stage.kill, "z": stage.freeze_or_thaw, "d": stage.switch}
    while not until or time.monotonic() < until:
        key = press()
        if key == "q" and not until:
            stage.stop_producing()
            until = time.monotonic() + SETTLE_SECONDS
        if until and not stage.witness.waiting:
            break
        if key in blows:
            blows[key]()
            always_exact = always_exact and stage.guarantee == "exactly_once"
        stage.tend()
        live.update(drawn(stage), refresh=True)
    return always_exact


@contextlib.contextmanager
def _keys(script: str | None) -> Iterator[Press]:
    """Yield a function that returns keys as pressed or scripted; each call waits for a frame."""
    if script is not None:
        yield _played(script)
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed() -> str:
    ready, _, _ = select.select([sys.stdin], [], [], FRAME_SECONDS)
    return sys.stdin.read(1).lower() if ready else ""


def _played(script: str) -> Press:
    words = script.split()
    waits = list(map(float, words[::2]))
    keys = iter(list(zip(waits, words[1::2], strict=True)))
    next_key, due = "", time.monotonic()

    def press() -> str:
        nonlocal next_key, due
        time.sleep(FRAME_SECONDS)
        if not next_key:
            seconds, next_key = next(keys, (0.0, "q"))
            due = time.monotonic() + seconds
        if time.monotonic() < due:
            return ""
        key, next_key = next_key, ""
        return key

    return press


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--script", help="seconds and keys, in turn")
    parser.add_argument("--cast", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
