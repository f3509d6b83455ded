"""Streams: event time, windows, and what is computed over them, on whole columns.

A window is a definition without state. Its functions take columns of times and of watermarks, and
return columns, so that they can be tested without a log and used by any engine.
"""
