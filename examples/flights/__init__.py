"""The main job on real flights: `make demo`."""
