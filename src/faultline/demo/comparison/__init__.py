"""The comparison: Faultline and a naive lease queue under the same faults, side by side.

    make comparison        200 jobs at each of 5, 10 and 20 % of jobs hit by a fault (minutes)

The same driver, jobs, seeds and fault schedule for both; real worker processes; each fault is a
real one on a real process, at a seeded point in the handler of a seeded job. What the jobs did is
counted in a table that neither queue owns. A run whose faults did not happen is invalid.

    schedule → contenders → driver → verdict        and orders, the handler that both run
"""
