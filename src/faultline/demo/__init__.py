"""`faultline demo`: the stalled worker, and the same faults for a queue without a fence.

    story         two real workers, told as it happens; what came out, as figures
    live          the same shop without an end, with the dashboard beside it
    shop          the app of both; actors: its workers; ground: the installation they are on
    comparison    Faultline and a naive lease queue (naive) under the same faults

Nothing but the command line imports it. Who installs the package has it, as with the drills.
"""
