#!/usr/bin/env bash
# What the agent alone takes of a host: its executable's size, what is in its build, and the memory it holds while it
# looks once a second. Argument: the executable of `cargo build --release --no-default-features --features agent`.
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$program" "$folder/fatia-agent"
strip "$folder/fatia-agent"
echo "executable, stripped: $(stat -c %s "$folder/fatia-agent" | awk '{printf "%.1f MiB", $1 / 1048576}')"
# Nobody answers there: it looks, keeps, and tries again.
seed=$(printf '07%.0s' {1..32})
mkdir -p "$folder/data/agent"
cat > "$folder/data/agent/agent.json" <<JSON
{"server": "http://127.0.0.1:9", "node": "dense-1", "seed": "$seed", "agent": "0198c0de-0000-7000-8000-000000000001",
 "audience": "urn:fatia:none", "inventory_counter": 0, "clock": {"boot": null, "offset_micros": 0, "wall_offset_micros": 0}}
JSON
for what in "--fleet tests/fixtures/agent/dense.toml" ""; do
    # shellcheck disable=SC2086  # Words of options.
    "$folder/fatia-agent" --data "$folder/data" $what 2> "$folder/log" &
    pid=$!
    sleep 20
    memory=$(awk '/VmHWM/ {printf "%.1f MiB", $2 / 1024}' "/proc/$pid/status")
    ticks=$(awk '{print $14 + $15}' "/proc/$pid/stat")
    echo "resident at most, ${what:-by NVML}: $memory; $ticks hundredths of a second of CPU in 20 s"
    kill "$pid"
    wait "$pid" || true
done
