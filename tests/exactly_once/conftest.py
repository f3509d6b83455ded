"""Every driver that a test makes is closed behind it."""

from tests.framework.drivers import drivers_are_closed

__all__ = ["drivers_are_closed"]
