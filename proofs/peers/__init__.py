"""Other queues on this machine: their pins, their installations, and Redis for those that need it.

The duel (`proofs/duel`) and the benchmark (`bench/peers`) run their scripts in the same ones.
"""
