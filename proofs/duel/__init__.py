"""The stale worker against the real peers, each in an environment of its own (`make duel`)."""
