#!/usr/bin/env bash
# The first lines of docs/how-to/containers.md on a real Docker: the image is built as on a machine
# that never had it, everything of compose.yml starts, a worker does a job. What ran is removed, with
# its volumes, so it stops if compose.yml runs here already. Run by `make docker-check`.
set -euo pipefail
cd "$(dirname "$0")/.."

found="$(docker compose ps --all --quiet)"
if [ -n "$found" ]; then
  echo "compose.yml runs here, or has left containers: docker compose down" >&2
  exit 1
fi

forget() {
  local status=$?
  [ "$status" = 0 ] || docker compose logs --tail=30 || true
  docker compose down --volumes --timeout 10 || true
  exit "$status"
}
trap forget EXIT

docker compose up -d --build
make --no-print-directory migrate
for port in 8000 8001; do
  curl --silent --show-error --fail --retry 60 --retry-delay 1 --retry-all-errors \
    "localhost:$port/health"
  echo
done
docker compose exec -T api faultline enqueue charge '{"order_id": 8}' --wait --timeout 60
