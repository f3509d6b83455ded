"""Constants that the app of the chaos and its oracle share."""

WINDOW_S = 5
"""Seconds of a window."""
BUCKETS = 8
"""Number of groups of the second stage."""
