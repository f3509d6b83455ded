"""Runnable programs: hello.py needs no other files, flights/ is the main job."""
