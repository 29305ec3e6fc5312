# `make` lists the targets. Each target that needs the environment sets it up by itself.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
RUNS ?= 500
DUELS ?= 3
MINUTES ?= 10
JOBS ?= 4
PY := .venv/bin/python

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv/.ready: pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh

# What a user has, and none of the tools: who wants to see it need not wait for those.
.venv/.demo: pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh demo

.venv/.report: .venv/.ready
	@PYTHON="$(PYTHON)" scripts/setup.sh report

.venv/.browser: .venv/.ready
	@PYTHON="$(PYTHON)" scripts/setup.sh browser

.venv/.chart: .venv/.ready
	@PYTHON="$(PYTHON)" scripts/setup.sh chart

.venv/.release: .venv/.ready
	@PYTHON="$(PYTHON)" scripts/setup.sh release

.venv/.docs: .venv/.ready
	@PYTHON="$(PYTHON)" scripts/setup.sh docs

.PHONY: setup
setup: .venv/.ready ## make .venv with everything in it (the other targets do this by themselves)

.PHONY: demo
demo: .venv/.demo ## watch a stalled worker come back and be refused (seconds); SERVE=1: in a browser, too
	@.venv/bin/faultline demo $(if $(SERVE),--serve)

.PHONY: test
test: .venv/.report .venv/.browser .venv/.docs .venv/.release ## the whole suite, in parallel, on an embedded PostgreSQL; then the quick schedules and drills; T=tests/test_x.py: only that
	@TIMEFORMAT='tests took %0R s'; time $(PY) -m pytest -q -n $(JOBS) --dist worksteal --durations=20 $(T)
ifeq ($(strip $(T)),)
	@TIMEFORMAT='schedules took %0R s'; time $(MAKE) --no-print-directory explore-quick
	@TIMEFORMAT='drills took %0R s'; time $(MAKE) --no-print-directory drills-quick
endif

.PHONY: check
check: .venv/.report .venv/.browser .venv/.docs .venv/.release ## format, lint, types, tidy
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@$(PY) -m pytest -q tests/test_tidy.py

.PHONY: format
format: .venv/.ready ## rewrite the code in the house format
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

.PHONY: migrate
migrate: ## bring FAULTLINE_DATABASE_URL, or compose.yml's database, or the embedded server, to this version
	@PYTHON="$(PYTHON)" scripts/migrate.sh

.PHONY: image
image: .venv/.ready ## build the container image, as faultline and faultline:VERSION (needs Docker)
	@version="$$($(PY) -c 'import faultline; print(faultline.__version__)')" && \
	  docker build --tag faultline --tag "faultline:$$version" --build-arg VERSION="$$version" .

.PHONY: image-check
image-check: .venv/.ready ## build the image and run it: a worker in it completes a job, drains (minutes; root, Debian)
	@$(PY) -m proofs.containers.image

.PHONY: docker-check
docker-check: ## compose.yml on a real Docker, from a build to a job that a worker has done (minutes; needs Docker)
	@scripts/docker-check.sh

.PHONY: compose-check
compose-check: .venv/.ready ## run compose.yml, and stop a worker in the middle of a job (minutes; root, Debian)
	@$(PY) -m proofs.containers.compose

.PHONY: lease-race
lease-race: .venv/.ready ## the race RUNS times (default 500) in parallel; says how many held (minutes)
	@$(PY) -m proofs.race run --runs $(RUNS)

.PHONY: lease-race-log
lease-race-log: .venv/.ready ## the race once, as a structured trace in JSON lines
	@$(PY) -m proofs.race log

.PHONY: drills
drills: .venv/.ready ## more than 1,500 real faults on real processes, judged by a checker (about 10 minutes)
	@.venv/bin/faultline drill run --out reports/latest

.PHONY: drills-quick
drills-quick: .venv/.ready ## a few of each kind (about 2 minutes)
	@.venv/bin/faultline drill run --quick --out reports/quick

.PHONY: comparison
comparison: .venv/.ready ## Faultline and a naive queue under the same faults, at 5, 10 and 20 % (2 minutes)
	@$(PY) -m proofs.comparison

.PHONY: duel
duel: .venv/.ready ## the stalled worker against other queues, DUELS times at each point (a quarter of an hour)
	@$(PY) -m proofs.duel --runs $(DUELS)

.PHONY: guides
guides: .venv/.ready ## what the migration guides show of Celery and Procrastinate, run (a minute; installs them)
	@$(PY) -m proofs.guides

.PHONY: report
report: .venv/.report ## reports/latest/report.html, from what drills, comparison, duel and demo have left
	@$(PY) -m proofs.report

.PHONY: screenshots
screenshots: .venv/.report .venv/.browser ## docs/screenshots and docs/gifs, from a real run in Chromium (2 minutes)
	@test -f reports/latest/comparison.json || $(MAKE) --no-print-directory comparison
	@$(PY) -m proofs.pictures

.PHONY: docs
docs: .venv/.docs ## the documents as a site in build/site; a link that leads nowhere is an error (10 seconds)
	@$(PY) -m website build

.PHONY: docs-serve
docs-serve: .venv/.docs ## the same, and shown on http://127.0.0.1:8080
	@$(PY) -m website serve

.PHONY: dashboard-hour
dashboard-hour: .venv/.browser ## the dashboard left open for MINUTES (default 10) beside busy workers: it does not grow
	@$(PY) -m proofs.hour --minutes $(MINUTES)

.PHONY: mutants
mutants: .venv/.ready ## remove each guard in turn; the proofs named for it must fail every time (up to 40 minutes, can be interrupted); SINCE=COMMIT, FRESH=1
	@$(PY) -m proofs.mutants $(if $(SINCE),--since "$(SINCE)") $(if $(FRESH),--fresh)

.PHONY: explore
explore: .venv/.ready ## every order of the steps of a few sessions, on a real server (a quarter of an hour)
	@$(PY) -m proofs.explore run

.PHONY: explore-quick
explore-quick: .venv/.ready ## a subset of it (a minute or two)
	@$(PY) -m proofs.explore run --quick

.PHONY: model
model: .venv/.ready ## check the protocol's model with TLC, over a million states (minutes; needs Java)
	@$(PY) -m proofs.model.run

.PHONY: contract
contract: .venv/.ready ## the service against its OpenAPI, tried by schemathesis with made-up requests (a minute)
	@$(PY) -m proofs.contract

.PHONY: million
million: .venv/.ready ## a million jobs in the tables: every endpoint of the service within 300 ms (a minute)
	@$(PY) -m proofs.million

.PHONY: http-outage
http-outage: .venv/.ready ## the database killed 30 times under HTTP load: nothing acknowledged is lost or twice (2 minutes)
	@$(PY) -m proofs.outage

.PHONY: chart-check
chart-check: .venv/.chart ## the Helm chart: linted, installed in a stand-in cluster, each object judged by its schema (2 minutes)
	@$(PY) -m pytest -q tests/test_chart.py
	@$(PY) -m proofs.chart

.PHONY: manifests
manifests: .venv/.chart ## deploy/k8s and the table of the chart's values, from the chart
	@$(PY) -m proofs.chart.manifests

.PHONY: bench
bench: .venv/.report ## how fast it is: ours against what the same server can do (under 10 minutes)
	@$(PY) -m bench

.PHONY: bench-peers
bench-peers: .venv/.report ## how fast it is: ours and other queues, in turns (a quarter of an hour; installs them)
	@$(PY) -m bench.peers

.PHONY: soak
soak: .venv/.report ## does it stay fast: MINUTES (default 10) at half of the maximum
	@$(PY) -m bench.soak --minutes $(MINUTES)

.PHONY: bench-first
bench-first: .venv/.ready ## how long the first enqueue of a process takes after app.open(), and import faultline (half a minute)
	@$(PY) -m bench.first

.PHONY: bench-verbs
bench-verbs: .venv/.ready ## what claim and complete cost inside the server, by batch size (half a minute)
	@$(PY) -m bench.verbs

.PHONY: bench-recovery
bench-recovery: .venv/.ready ## how soon 100,000 lost leases are all taken over (a minute)
	@$(PY) -m bench.recovery

.PHONY: bench-crashing
bench-crashing: .venv/.ready ## what 1,000 jobs that crash without end cost a neighbour (a minute)
	@$(PY) -m bench.crashing

.PHONY: bench-profile
bench-profile: .venv/.ready ## where a job's microseconds go: the worker's by module, and the server's (half a minute)
	@$(PY) -m bench.profile

.PHONY: bench-sizes
bench-sizes: .venv/.ready ## what jobs take on disk and in the WAL, in bytes a job (a minute)
	@$(PY) -m bench.sizes

.PHONY: bench-guard
bench-guard: .venv/.ready ## what a guard on a table costs, as a ratio to the same writes without it (half a minute)
	@$(PY) -m bench.guard

.PHONY: bench-tracing
bench-tracing: .venv/.ready ## what traces cost, as a ratio to a process without OpenTelemetry (two minutes)
	@$(PY) -m bench.tracing

.PHONY: dist
dist: .venv/.ready ## dist/: wheel and sdist, the same bytes from the same commit
	@rm -f dist/*.whl dist/*.tar.gz
	@$(PY) -m proofs.package.building

.PHONY: package-check
package-check: .venv/.release ## wheel and sdist, built twice, looked into, installed with every extra; the demo from there (a minute)
	@$(PY) -m proofs.package

.PHONY: sbom
sbom: .venv/.release ## dist/sbom.cdx.json: what is in an installation with every extra, and in the dashboard (half a minute)
	@$(PY) -m proofs.package.sbom

.PHONY: upgrade-check
upgrade-check: .venv/.ready ## a migrate in the middle of the work of the previous code's workers and producer (half a minute)
	@$(PY) -m proofs.upgrade

.PHONY: release-check
release-check: .venv/.release ## whether this commit can be released (a few minutes); TAG=v1.2.3: under this tag
	@$(PY) -m proofs.release check --tag "$(TAG)"
	@$(MAKE) --no-print-directory package-check sbom upgrade-check

.PHONY: released-schema
released-schema: .venv/.ready ## write sql/released.txt anew, when a release is made
	@$(PY) -m proofs.release schema
