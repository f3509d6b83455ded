"""Log compaction: of every key only the last committed record stays.

What it promises is in docs/semantics.md ("Compaction"). Read in this order:

    bounds        how far a partition is clean, and how far it can be cleaned
    offset_map    the last offset of every key, in bounded memory
    runs, marks   the same for more keys than fit there, by way of a file
    look          reads the keys: which records are the last of theirs
    survivors     which records stay
    rewriting     new segments of what stays
    cleaner       one pass over one partition: all of these, and the swap
    schedule      which partition when, on which thread; failures
"""
