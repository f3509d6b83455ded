"""Each driver that a test creates is closed after it."""

from tests.framework.drivers import drivers_are_closed

__all__ = ["drivers_are_closed"]
