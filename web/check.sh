#!/usr/bin/env bash
# Starts the demo of a built program in a temporary folder, and looks at its pages (check.mjs).
#
#     web/check.sh PROGRAM [FOLDER]      # FOLDER keeps the screenshots; without one they go away
#
# Without Node or Chromium nothing is looked at, and it says so.
set -euo pipefail
PROGRAM=$(realpath "${1:?usage: check.sh PROGRAM [FOLDER]}")
FOLDER=$(realpath -m "${2:-}" 2>/dev/null || true)
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf 'pages: %s\n' "$*"; }

CHROMIUM=${CHROMIUM:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)}
export CHROMIUM
if ! ../deploy/ci/needs.sh has-node || [[ ! -d dist ]]; then
    say "they were not looked at: they are not built, or there is no Node that could"
    exit
fi
if [[ -z $CHROMIUM ]]; then
    say "they were not looked at: there is no Chromium here"
    exit
fi

data=$(mktemp -d)
demo=
trap '[[ -z $demo ]] || kill "$demo" 2>/dev/null || true; wait; rm -rf "$data"' EXIT
"$PROGRAM" --data "$data/demo" demo --listen 127.0.0.1:0 >"$data/said" 2>"$data/log" &
demo=$!
# Weeks of history take a build without optimisations a minute or two.
for _ in {1..3000}; do
    if grep -q '^ready ' "$data/said"; then break; fi
    kill -0 "$demo" 2>/dev/null || { cat "$data/log" >&2; exit 1; }
    sleep 0.2
done
read -r _ address token <"$data/said" || { say "the demo is not ready:" >&2; cat "$data/log" >&2; exit 1; }
node check.mjs "$address" "${token#token=}" "${FOLDER:-$data/shots}"
