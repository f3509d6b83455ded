"""Log compaction: keep the last committed record of every key.

docs/semantics.md ("Compaction") describes the guarantees. Read the modules in this order:

    bounds        first dirty offset and first uncleanable offset of a partition
    offset_map    the last offset of every key, in bounded memory
    runs, marks   the same for more keys than fit into memory, by way of a file
    look          reads the keys and finds the last record of each
    survivors     decides which records of a frame are retained
    rewriting     writes the retained records into new segments
    cleaner       one pass over one partition: all of the above, and the swap of segments
    schedule      which partition is cleaned when, on which thread; failures and retries
"""
