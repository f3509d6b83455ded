from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def logs_are_checked() -> None:
    """Replace the check after each test. Here thousands of logs are checked, each at once."""
