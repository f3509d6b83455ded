"""The offline load of topics: Parquet files, Delta Lake and Iceberg tables, each record once.

Read it in this order: `api` is called by programs; `loader` makes the rounds of a run; `plan`
decides what to read; `tasks` reads and writes one partition; `target` is what `parquet`, `delta`
and `iceberg` implement on top of `folder`, which has the steps of a commit that all of them share.
"""
