"""`make bench-peers`: other queues under the same work, each in an environment of its own."""
