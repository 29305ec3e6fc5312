#!/usr/bin/env bash
# Brings an installation to this version: that of FAULTLINE_DATABASE_URL; else that of compose.yml,
# if it runs here; else the embedded server's, which is started. It says which, and when Docker cannot
# tell whether compose.yml runs it stops, rather than migrate another database. Run by `make migrate`.
set -euo pipefail
cd "$(dirname "$0")/.."

compose_runs() {
  local found
  # Without Compose nothing of compose.yml can run here.
  docker compose version >/dev/null 2>&1 || return 1
  if ! found="$(timeout 20 docker compose ps --quiet --status=running postgres)"; then
    echo "Docker does not say whether compose.yml runs here, so nothing was migrated. Mend that, or" \
      "name the database: FAULTLINE_DATABASE_URL (the embedded server's: faultline db url)." >&2
    exit 1
  fi
  [ -n "$found" ]
}

if [ -n "${FAULTLINE_DATABASE_URL:-}" ]; then
  echo "migrating the database of FAULTLINE_DATABASE_URL" >&2
  make --silent setup
elif compose_runs; then
  echo "migrating the database of compose.yml, which runs here" >&2
  exec docker compose run --rm --no-deps migrate
else
  echo "migrating the embedded server's database" >&2
  make --silent setup
  .venv/bin/faultline db start
fi
exec .venv/bin/faultline migrate
