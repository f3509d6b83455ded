"""Several workers of one app, under a supervisor that owns the log.

    supervisor.py   starts the workers, again and again; ends them in order
    slots.py        one of the N: the process in it now, and what became of those before
    process.py      a process, its output by lines, and the line on which it reports
    backoff.py      how long to wait before a worker is started again, and when to give up
    report.py       what a worker says of itself
    reporter.py     in the worker: says it, and ends the worker when the supervisor is gone
    view.py         what the supervisor shows: a table, a line now and then, or JSON
    logs.py         where the lines of workers go

No user code runs in the supervisor: whatever a worker does, the log has an owner that goes on.
"""
