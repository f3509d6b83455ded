"""Main job on real flights: `make demo`."""
