"""The dashboards, described; `python deploy/grafana/boards.py` writes the JSON that Grafana loads.

Numbers of processes are summed; what the database says is the same from each API that is scraped,
and so taken with max. Every query is run by a test against a real Prometheus.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from panels import Panel, Row, dashboard, increase, number, oldest, quantile, rate

QUEUE = '{queue=~"$queue"}'

CORRECTNESS = (
    Row(
        "Now",
        (
            number(
                "Stale writes refused, 1 h",
                "sum(increase(faultline_stale_writes_rejected_total[1h]))",
                says="Each was refused by the database: nothing was written. It says that a worker "
                "came back after its lease was lost.",
            ),
            number(
                "Invariants broken",
                "sum(max by (namespace, invariant) (faultline_invariant_violations))",
                says="Rows that contradict what is promised of every job. 0, always.",
            ),
            number("Risk", "max(faultline_stale_risk_score)", red_from=60),
            number("Leases expired", 'max(faultline_leases{state="expired"})'),
            number(
                "Quarantined",
                'sum(max by (namespace, queue) (faultline_queue_depth{state="quarantined"}))',
            ),
            number("Workers silent", 'max(faultline_workers{state="silent"})'),
            Panel(
                *("Database", "short", {"up": "min(faultline_database_up)"}),
                *("1: the API can ask it.", "stat", 4),
            ),
        ),
    ),
    Row(
        "Refused",
        (
            Panel(
                "Stale writes refused, by reason and operation",
                "short",
                {
                    "{{reason}} {{operation}}": increase(
                        "faultline_stale_writes_rejected_total", "reason, operation"
                    )
                },
            ),
            Panel(
                "Refusals recorded in the database",
                "short",
                {"recorded": "max(increase(faultline_refusals_recorded_total[$__rate_interval]))"},
                "Also those whose worker was gone before it could be scraped.",
            ),
        ),
    ),
    Row(
        "Leases",
        (
            Panel(
                "Expired, recovered, lost",
                "short",
                {
                    "expired": increase("faultline_lease_expirations_total"),
                    "recovered": increase("faultline_recoveries_total"),
                    "lost: {{reason}}": increase("faultline_leases_lost_total", "reason"),
                },
            ),
            Panel(
                "Quarantined and dead jobs, dead processes",
                "short",
                {
                    "quarantined": increase("faultline_jobs_quarantined_total"),
                    "dead: {{task}}": increase("faultline_jobs_dead_total", "task"),
                    "processes": increase("faultline_worker_process_deaths_total"),
                },
            ),
            Panel(
                "Leases held",
                "short",
                {"{{state}}": "max by (state) (faultline_leases)"},
            ),
            Panel("Risk score", "short", {"score": "max(faultline_stale_risk_score)"}),
        ),
    ),
    Row(
        "What recovery depends on",
        (
            Panel(
                "Since the last round of a reconciler",
                "s",
                {
                    "reconciler": oldest("faultline_reconciler_last_round_timestamp_seconds"),
                    "due jobs not queued": "max(faultline_scheduled_overdue_seconds)",
                },
            ),
            Panel(
                "Calls that the database did not answer",
                "ops",
                {"{{verb}}": rate("faultline_database_errors_total", "verb")},
            ),
            Panel(
                "Standbys",
                "short",
                {"{{kind}}": "max by (kind) (faultline_standbys)"},
                "A failover to an asynchronous one may lose completions: those jobs run again.",
            ),
            Panel("Workers", "short", {"{{state}}": "max by (state) (faultline_workers)"}),
            Panel(
                "Since the last check of the invariants",
                "s",
                {"check": oldest("faultline_invariants_checked_timestamp_seconds")},
                "Made every ten minutes, by each API that is scraped.",
            ),
            Panel(
                "Rows that break an invariant",
                "short",
                {"{{invariant}}": "max by (invariant) (faultline_invariant_violations)"},
                "As the last check saw them.",
            ),
        ),
    ),
)

OPERATIONS = (
    Row(
        "Throughput",
        (
            Panel(
                "Jobs",
                "ops",
                {
                    "enqueued": rate("faultline_jobs_enqueued_total", where=QUEUE),
                    "claimed": rate("faultline_jobs_claimed_total", where=QUEUE),
                    "succeeded": rate("faultline_jobs_succeeded_total", where=QUEUE),
                },
            ),
            Panel(
                "Jobs that did not succeed",
                "ops",
                {
                    "failed: {{task}}": rate("faultline_jobs_failed_total", "task", QUEUE),
                    "tried again": rate("faultline_jobs_retried_total", where=QUEUE),
                    "dead": rate("faultline_jobs_dead_total", where=QUEUE),
                    "put off": rate("faultline_jobs_snoozed_total", where=QUEUE),
                    "handed back": rate("faultline_jobs_released_total", where=QUEUE),
                    "cancelled": rate("faultline_jobs_cancelled_total", where=QUEUE),
                },
            ),
        ),
    ),
    Row(
        "Latency",
        (
            Panel(
                "Execution",
                "s",
                {
                    "p50 {{task}}": quantile(0.5, "faultline_execution_seconds", "task", QUEUE),
                    "p95 {{task}}": quantile(0.95, "faultline_execution_seconds", "task", QUEUE),
                },
            ),
            Panel(
                "Pickup",
                "s",
                {
                    "p50 {{queue}}": quantile(0.5, "faultline_pickup_seconds", "queue", QUEUE),
                    "p99 {{queue}}": quantile(0.99, "faultline_pickup_seconds", "queue", QUEUE),
                },
                "From when a job was due to its first claim.",
            ),
        ),
    ),
    Row(
        "Queues",
        (
            Panel(
                "Jobs by queue and state",
                "short",
                {"{{queue}} {{state}}": f"max by (queue, state) (faultline_queue_depth{QUEUE})"},
                "A lower bound where there are more than 10,000 in a lane.",
            ),
            Panel(
                "Age of the oldest waiting job",
                "s",
                {"{{queue}}": f"max by (queue) (faultline_queue_oldest_age_seconds{QUEUE})"},
            ),
        ),
    ),
    Row(
        "Workers",
        (
            Panel(
                "Running, of so many places",
                "short",
                {
                    "running": "sum(faultline_running)",
                    "places": "sum(faultline_concurrency)",
                    "processes": "sum(faultline_worker_processes)",
                    "draining": "sum(faultline_worker_processes_draining)",
                },
            ),
            Panel(
                "Share of jobs' time outside of handlers",
                "percentunit",
                {
                    "coordination": f"{rate('faultline_coordination_seconds_total')} / "
                    f"({rate('faultline_coordination_seconds_total')} + "
                    f"{rate('faultline_handler_seconds_total')} > 0)"
                },
                "Waiting for a place, being claimed and settled.",
            ),
            Panel(
                "Leases",
                "ops",
                {
                    "acquired": rate("faultline_lease_acquisitions_total"),
                    "renewed": rate("faultline_lease_renewals_total"),
                    "promoted": rate("faultline_jobs_promoted_total"),
                },
            ),
            Panel(
                "Jobs a call moves, on average",
                "short",
                {
                    "{{operation}}": f"{rate('faultline_batch_size_sum', 'operation')} / "
                    f"({rate('faultline_batch_size_count', 'operation')} > 0)"
                },
            ),
        ),
    ),
    Row(
        "Database",
        (
            Panel(
                "Seconds of a call, p95",
                "s",
                {
                    "{{verb}}": quantile(0.95, "faultline_database_seconds", "verb"),
                    "claims that found jobs": quantile(0.95, "faultline_claim_seconds"),
                },
            ),
            Panel("Calls", "ops", {"{{verb}}": rate("faultline_database_seconds_count", "verb")}),
            Panel(
                "Rows of busy tables",
                "short",
                {
                    "{{table}} dead": "max by (table) (faultline_table_dead_rows)",
                    "{{table}} live": "max by (table) (faultline_table_live_rows)",
                },
            ),
            Panel(
                "Size of busy tables",
                "bytes",
                {"{{table}}": "max by (table) (faultline_table_bytes)"},
            ),
            Panel(
                "Oldest open transaction, and retention behind",
                "s",
                {
                    "open": "max(faultline_pinned_snapshot_seconds)",
                    "behind": "max(faultline_retention_behind_seconds)",
                },
            ),
            Panel(
                "HTTP requests",
                "ops",
                {
                    "{{method}} {{route}} {{status}}": rate(
                        "faultline_http_requests_total", "method, route, status"
                    )
                },
            ),
            Panel(
                "HTTP seconds, p95",
                "s",
                {"{{route}}": quantile(0.95, "faultline_http_request_seconds", "route")},
            ),
        ),
    ),
)


BOARDS = {
    "correctness.json": dashboard("faultline-correctness", "Faultline: correctness", CORRECTNESS),
    "operations.json": dashboard("faultline-operations", "Faultline: operations", OPERATIONS),
}


def main(arguments: list[str]) -> int:
    """Write them; with --check, say whether they are written already."""
    status = 0
    for name, board in BOARDS.items():
        path, text = Path(__file__).with_name(name), json.dumps(board, indent=2) + "\n"
        if arguments != ["--check"]:
            path.write_text(text)
        elif path.read_text() != text:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
