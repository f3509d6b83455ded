"""Consumer groups in the log's owner: assignors → one group → the coordinator of all groups."""
