"""The lease protocol as a TLA+ model, and the runner that has TLC check it."""
