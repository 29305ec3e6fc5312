"""Drills: real faults on real processes, judged by a checker that knows nothing of the queue."""
