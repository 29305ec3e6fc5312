#!/usr/bin/env bash
# Installs what some tests use of a Debian or Ubuntu machine: a real pooler, Prometheus, Redis and
# browser; and, where its number is given, a second PostgreSQL (15 to 18), from the distribution or,
# where that has none, from PostgreSQL's own packages. What cannot be had is named, and the tests
# that need it are skipped; a PostgreSQL that was asked for has to be there.
set -euo pipefail
postgresql=${1:-}

command -v apt-get >/dev/null || { echo "no apt-get here: nothing is installed" >&2; exit 0; }
if [ "$(id -u)" = 0 ]; then
  as_root=(env)
elif sudo --non-interactive true 2>/dev/null; then
  as_root=(sudo --non-interactive env)
else
  echo "neither root nor sudo: nothing is installed" >&2
  exit 0
fi
# RUNLEVEL=1: what is installed is not started.
install() {
  "${as_root[@]}" RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null 2>&1
}
has_browser() { command -v chromium || command -v google-chrome; }

missing=()
for tool in pgbouncer prometheus redis-server; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
has_browser >/dev/null || missing+=(chromium)
programs=/usr/lib/postgresql/$postgresql/bin/postgres
[ -z "$postgresql" ] || [ -x "$programs" ] || missing+=("postgresql-$postgresql")
[ ${#missing[@]} -gt 0 ] || exit 0

"${as_root[@]}" apt-get update -qq >/dev/null 2>&1 || true
for package in "${missing[@]}"; do
  install "$package" && continue
  if [ "$package" = "postgresql-$postgresql" ]; then
    install postgresql-common ca-certificates
    "${as_root[@]}" /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y >/dev/null
    install "$package" && continue
  fi
  echo "no $package: the tests that need it are skipped" >&2
done
[ -z "$postgresql" ] || [ -x "$programs" ] || { echo "no PostgreSQL $postgresql" >&2; exit 1; }
