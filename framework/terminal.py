"""Log output that is safe on a terminal."""

from __future__ import annotations

import logging

from strandline.changelog.printable import printable


class PrintableFormatter(logging.Formatter):
    """Log formatter for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, with its traceback if it has one, in printable characters."""
        return printable(super().format(record))
