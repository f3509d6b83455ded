"""Pictures for docs/compaction.md, drawn from logs that are filled, cleaned and measured."""
