"""Consumer groups as the owner of the log keeps them: assignors → one group → all groups."""
