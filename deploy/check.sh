#!/usr/bin/env bash
# Checks what is under deploy/ as far as the programs of this machine can: the compose file, the systemd units, and that
# the Dockerfile copies what there is. What cannot be checked here is said, and no fault.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf 'deploy: %s\n' "$*"; }
fail() { say "$*" >&2; exit 1; }

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The Compose plugin, or the program of before.
compose() {
    if docker compose version >/dev/null 2>&1; then
        docker compose "$@"
    else
        docker-compose "$@"
    fi
}

check_compose() {
    local name
    for name in $(sed -n 's/^\([A-Z_]*\)=$/\1/p' docker/env.example); do
        printf '%s=0123456789abcdef\n' "$name"
    done >"$folder/env"
    if docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null; then
        compose --env-file "$folder/env" -f docker/compose.yaml config --quiet
        if compose --env-file /dev/null -f docker/compose.yaml config --quiet 2>/dev/null; then
            fail "docker/compose.yaml is content without passwords"
        fi
        say "docker/compose.yaml is well formed"
    else
        say "docker/compose.yaml was not checked: there is no Docker Compose here"
    fi
}

# With a program that is there in place of ours, which may not be installed.
check_units() {
    if ! command -v systemd-analyze >/dev/null; then
        say "systemd/*.service were not checked: there is no systemd-analyze here"
        return
    fi
    local unit said
    for unit in systemd/*.service; do
        sed -E 's#^(Exec[A-Za-z]*=)/usr/bin/fatia(-agent)?\b#\1/bin/true#' "$unit" >"$folder/${unit##*/}"
    done
    # What it warns of, an unknown key such, is a fault here.
    said=$(systemd-analyze verify --man=no "$folder"/*.service 2>&1) || fail "$said"
    [[ -z $said ]] || fail "$said"
    # A service without rights of root's is to stay one. Tenths of systemd's points of exposure, of which 100 are most.
    if systemd-analyze security --help 2>/dev/null | grep -q -- --offline; then
        systemd-analyze security --offline=yes --threshold=20 "$folder/fatia.service" >"$folder/security" \
            || fail "fatia.service is more exposed than it was: $(tail -n1 "$folder/security")"
        systemd-analyze security --offline=yes --threshold=40 "$folder/fatia-agent.service" >"$folder/security" \
            || fail "fatia-agent.service is more exposed than it was: $(tail -n1 "$folder/security")"
    fi
    say "systemd/*.service are well formed"
}

check_dockerfile() {
    local path rust
    for path in $(sed -n 's/^COPY \([^-].*\) [^ ]*$/\1/p' docker/Dockerfile); do
        [[ -e ../$path ]] || fail "docker/Dockerfile copies $path, which is not there"
        grep -qxF "!$path" ../.dockerignore || fail ".dockerignore keeps $path from docker/Dockerfile"
    done
    rust=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' ../Cargo.toml)
    path=$(sed -n 's/^ARG RUST=//p' docker/Dockerfile)
    [[ $(printf '%s\n' "$rust" "$path" | sort -V | head -n1) == "$rust" ]] \
        || fail "docker/Dockerfile builds with Rust $path, which is older than $rust"
    say "docker/Dockerfile copies what is there"
}

check_compose
check_units
check_dockerfile
