"""Several workers of one app, under a supervisor that owns the log.

    supervisor.py   starts, restarts and stops the workers
    slots.py        one of N workers: its current process and totals over its former ones
    process.py      a worker's process, its output by lines, and its socket for reports
    backoff.py      pauses between restarts, and the number of deaths after which to give up
    report.py       status report of a worker
    reporter.py     in the worker: sends reports, and ends the worker if the supervisor is gone
    lag.py          in the worker: measures the lag, and detects a log that does not answer
    view.py         the supervisor's output: a table, summary lines or JSON
    logs.py         files for the workers' output
    metrics.py      the supervisor's metrics

No user code runs in the supervisor, so no worker can stop the owner of the log.
"""
