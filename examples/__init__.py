"""Programs that run: hello.py needs nothing, flights/ is the main job."""
