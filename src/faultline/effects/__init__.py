"""Effects outside the job database: one module for each kind of sink that can compare or dedupe.

    redis       one command, unless a later attempt of this job has been at its key
    s3          a conditional put that a later attempt's object refuses
    http        the headers of a request: a key that stays the same, a token that rises
    postgres    a fence in another PostgreSQL, inside the transaction that writes there

Each is given your own client and uses of a Context only `job_id`, `token` and `idempotency_key`.
A write that comes too late raises StaleLease with the highest token the sink has seen; let it
pass, and the worker records it. Nothing here imports a client, opens a connection or waits.
"""
