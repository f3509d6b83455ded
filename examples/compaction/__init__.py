"""The pictures of docs/compaction.md, drawn from logs that are filled, cleaned and measured for it."""
