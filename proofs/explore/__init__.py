"""The schedule explorer: every order in which the steps of a few sessions can happen.

    python -m proofs.explore [--quick] [WORD …]     all schedules of all scenarios (`make explore`)
    python -m proofs.explore replay SCENARIO:ID     one of them, as a timeline
    python -m proofs.explore mutants [WORD …]       remove each guard of the SQL; what is found?
    python -m proofs.explore list                   the scenarios

A scenario (scenarios.py) is a few actors, each a short program of steps (steps.py): statements on
a real connection (session.py) to a real PostgreSQL. A schedule is a merge of the programs; its id
says whose turn it was, a letter a step. A step that waits for a lock is left waiting, and the
others go on (play.py). search.py enumerates, judge.py and arena.sql judge, timeline.py tells.
"""
