"""Live flights and totals, with workers that you may kill: `make wow`.

show.py      main loop: keys, failures, frames
stage.py     the log, the thread that produces flights, the workers
witness.py   comparison of every output with the flights themselves
screen.py    drawing
worker.py    a worker's process
cast.py      a recording in asciinema's format
"""
