"""Check and repair of the stores in a log folder that no process has open.

stores.py     each engine compared with the fold of its changelog
declared.py   stored keys and values compared with the recorded declarations
repairing.py  damaged stores moved away, to be restored from their changelogs
"""
