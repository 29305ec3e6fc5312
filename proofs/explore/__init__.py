"""The schedule explorer: every order in which the steps of a few sessions can happen.

    python -m proofs.explore run [--quick] [WORD …]     all schedules of all scenarios
    python -m proofs.explore replay SCENARIO:TURNS      one of them, as a timeline
    python -m proofs.explore hunt [WORD …]              remove guards; which schedule misses them?
    python -m proofs.explore list                       the scenarios

A scenario (scenarios.py, small.py) is a few actors, each a short program of steps (steps.py):
statements on a real connection (session.py) to a real PostgreSQL. A schedule is a merge of the
programs; its id says whose turn it was, a letter a step. A step that waits for a lock is left
waiting, and the others go on (play.py). search.py enumerates, judge.py and arena.sql judge,
timeline.py tells.
"""
