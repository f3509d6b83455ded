"""Putting right what a check has found: docs/reliability.md says what, and what it means.

plan.py        what is going to be done and lost, and how it is carried out
folder.py      from a checked folder to a plan
surgery.py     segments and the manifest of one partition, written anew
outcomes.py    how transactions ended whose end is lost
losses.py      what is lost, in words
"""
