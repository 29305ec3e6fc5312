#!/usr/bin/env bash
# Makes .venv and installs this checkout into it, editable, with the embedded server and the
# development tools; with an argument, also with that extra; with `demo`, as a user has it, without
# the tools. Run by `make setup` and `make demo`; PYTHON names the interpreter (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

say() { printf '%s\n' "$*" >&2; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  say "Faultline needs Python 3.11 or newer; '$python' is not. Name one: make setup PYTHON=python3.12"
  exit 1
}

# A virtual environment, by whatever this machine has. Debian without python3-venv has neither
# ensurepip nor, often, pip: then the environment is made bare and filled from outside. One that is
# there already is kept, so that a changed dependency does not pull it away from under a running test.
make_venv() {
  "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv .venv 2>/dev/null && return
  rm -rf .venv
  command -v uv >/dev/null && uv venv --quiet --seed --python "$python" .venv && return
  "$python" -m virtualenv --quiet .venv 2>/dev/null && return
  "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip .venv && return
  say "'$python' can make no virtual environment: install its venv package" \
      "(Debian and Ubuntu: apt install python3-venv), then run this again."
  exit 1
}
.venv/bin/python -c '' 2>/dev/null || { rm -rf .venv; make_venv; }
if .venv/bin/python -m pip --version >/dev/null 2>&1; then
  install=(.venv/bin/python -m pip install)
else
  install=("$python" -m pip --python .venv/bin/python install)
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ "${1:-}" = demo ]; then extras=all; else extras="embedded,dev${1:+,$1}"; fi
say "Setting up .venv${1:+ for $1} (once; about half a minute) …"
if ! "${install[@]}" --quiet --editable ".[$extras]" >"$log" 2>&1; then
  cat "$log" >&2
  say "The dependencies could not be installed; what pip said stands above."
  exit 1
fi
if [ "${1:-}" = chart ]; then
  # Helm as a library. Its Python part asks for a newer Python; only the library is used.
  "${install[@]}" --quiet --no-deps --ignore-requires-python helm-sdkpy==0.1.32 >"$log" 2>&1 || {
    cat "$log" >&2
    say "Helm could not be installed; what pip said stands above."
    exit 1
  }
fi
touch ".venv/.${1:-ready}" .venv/.demo  # the others have what the demo needs, too
