"""The log in a folder: its files, and the one process that owns them.

bytes            format.py  frame.py                     docs/format.md
files            names.py  document.py  manifest.py  folder.py  filesystem.py
a partition      partition.py  segment.py  view.py  reading.py  recovery.py  retention.py
producers        producer_state.py  aborted.py
transactions     coordinator.py  group_commit.py  transaction_log.py  offsets.py
the whole log    owner.py  topic.py  admission.py  context.py  traffic.py
"""
