"""Repair of the problems that a check has found; docs/reliability.md lists what it does.

plan.py        the steps of a repair and its losses, and their execution
folder.py      creates a plan for a checked folder
surgery.py     rewrites segments and the manifest of one partition
outcomes.py    decides how transactions ended whose marker is lost
losses.py      describes what is lost
"""
