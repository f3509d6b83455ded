"""The check that pins are complete. An incomplete pin is not a loss of the log."""

from __future__ import annotations

from strandline.changelog.embedded.checking.findings import CheckReport, Severity
from strandline.changelog.embedded.pins import pins_in, whole_pin
from strandline.changelog.errors import CorruptLog, FutureFormat, cause
from strandline.changelog.layout import pin_folder
from strandline.changelog.storage import Storage

WAY_OUT = "opening the log removes it; its reader gets an error"


def check_pins(storage: Storage, report: CheckReport) -> None:
    """Check every pin. Raises FutureFormat."""
    for name in pins_in(storage):
        try:
            whole_pin(storage, name)
            continue
        except FileNotFoundError:
            what = "is incomplete: a crash interrupted its creation or removal"
        except FutureFormat:
            raise
        except CorruptLog as error:
            what = f"cannot be read: {cause(error)}"
        report.add(Severity.NOTE, "pin", pin_folder(name), what, way_out=WAY_OUT)
