"""The report: what the proofs have left in reports/latest, as one HTML file and its JSON.

    make report        reads drills.jsonl, drills.json, comparison.json, duel.json and
                       benchmark_summary.json; writes report.json and report.html beside them

    sources → digest (report.json) → plots → page (report.html)

It measures nothing and runs nothing. Every figure is read from those files and names the command,
seed and commit that made it; what was not run says which command runs it.
"""
