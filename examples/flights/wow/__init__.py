"""Flights as they come, live totals, and workers that you may kill: `make wow`.

show.py      the loop: keys, blows, frames
stage.py     the log, the pump that produces flights, the workers
witness.py   holds every output against the flights themselves
screen.py    what is drawn
worker.py    a worker's process
cast.py      a recording, as asciinema plays it
"""
