"""Operators that keep state, as they run in the tasks of stages.

operator        what all of them have, and late rows
group_keys      columns of rows as keys of a store
groups          aggregates without windows
panes           tumbling, calendar and hopping windows
session_groups  sessions
open_sessions   the stores of open sessions
merging         windows of panes and sessions as columns
first_time      the earliest time in a store
count_groups    windows of a number of records
duplicates      the first of equal rows
"""
