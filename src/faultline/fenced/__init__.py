"""Fenced transactions: a handler's own writes, committed only while its attempt owns the job.

BEGIN, fence → the handler's statements → enqueue* (emit), record_step | complete_one |
assert_fence, COMMIT, at which the database checks the fence once more; on a psycopg connection what
stands between two arrows is one message

block        what every kind has in common: steps, completing, emitting, the lost answer
transaction  on a psycopg connection of the worker's pool: ctx.transaction()
session      on a SQLAlchemy session of the user's: ctx.session(Session)
pool         the worker's connections for them; connection: what these refuse
drive        one implementation for `with` and `async with`
"""
