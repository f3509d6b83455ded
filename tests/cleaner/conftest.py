from __future__ import annotations

import pytest


@pytest.fixture
def groups_are_put_by_hand() -> bool:
    return True
