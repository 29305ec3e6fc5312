"""Checks of what survives: a crash of the server, and a failover."""

from __future__ import annotations

from faultline import conditions
from faultline.cli.display import plural
from faultline.cli.doctor.finding import Finding, Probe

_SETTINGS = """
select pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names')"""


def durability(probe: Probe) -> Finding:
    """Whether what was acknowledged survives a crash of the server."""
    _, fsync, full_pages, commit, _ = probe.row(_SETTINGS)
    wrong = [
        f"{name} is off"
        for name, value in (("fsync", fsync), ("full_page_writes", full_pages))
        if value == "off"
    ]
    if wrong:
        return Finding(
            "durability",
            "problem",
            f"{' and '.join(wrong)}: a crash of the machine can destroy the whole database",
            "turn it on in postgresql.conf, and reload",
        )
    if commit == "off":
        return Finding(
            "durability",
            "problem",
            "synchronous_commit is off: jobs and completions that were acknowledged are lost in a "
            "crash",
            f"alter role {probe.user} set synchronous_commit = on",
        )
    return Finding("durability", "ok", "a commit is on disk before it is acknowledged")


def replication(probe: Probe) -> Finding:
    """Whether what was acknowledged survives a failover."""
    standby, _, _, commit, names = probe.row(_SETTINGS)
    if standby:
        return Finding(
            "replication",
            "problem",
            "this server is a standby and accepts no writes",
            "connect to the primary: add target_session_attrs=read-write and all hosts to the URL",
        )
    standbys = conditions.standbys(probe.conn)
    if not names:
        if not standbys.count:
            return Finding("replication", "ok", "no standby: this server is the only copy")
        return Finding(
            "replication",
            "warn",
            f"{plural(standbys.count, 'standby server')}, asynchronous: a failover may lose the "
            "last acknowledged jobs and completions; those jobs run again, under higher tokens",
            "set synchronous_standby_names, if that matters to you",
        )
    if commit in ("local", "off"):
        return Finding(
            "replication",
            "warn",
            f"synchronous_standby_names is set, but synchronous_commit is {commit}: a failover may "
            "lose acknowledged completions",
            f"alter role {probe.user} set synchronous_commit = on",
        )
    if not standbys.synchronous and not standbys.unseen:
        return Finding(
            "replication",
            "problem",
            f"no standby of synchronous_standby_names ({names}) is connected: commits wait for it",
            "bring the standby back, or take it out of synchronous_standby_names",
        )
    return Finding("replication", "ok", f"synchronous ({names})")
