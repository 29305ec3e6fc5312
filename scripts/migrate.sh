#!/usr/bin/env bash
# Brings an installation to this version: that of FAULTLINE_DATABASE_URL; else that of compose.yml,
# if it runs here; else the embedded server's, which is started. Run by `make migrate`.
set -euo pipefail
cd "$(dirname "$0")/.."

compose_runs() {
  command -v docker >/dev/null || return 1
  [ -n "$(timeout 20 docker compose ps --quiet --status=running postgres 2>/dev/null)" ]
}

if [ -z "${FAULTLINE_DATABASE_URL:-}" ] && compose_runs; then
  exec docker compose run --rm --no-deps migrate
fi
make --silent setup
[ -n "${FAULTLINE_DATABASE_URL:-}" ] || .venv/bin/faultline db start
exec .venv/bin/faultline migrate
