#!/usr/bin/env bash
# Finds what building (`build`), checking (`lint`) or testing (`test`) Fatia needs, installs what Debian's or
# Ubuntu's packages can give, and says how to get the rest. Safe to run again: with everything there it changes nothing.
# `has-node` only says, by its exit status, whether the web pages can be built.
#
# It does not install Rust: the toolchain is yours to choose (distributions' own are too old for edition 2024).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
RUST_MINIMUM=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$ROOT/Cargo.toml")

NODE_MINIMUM=$(sed -n 's/.*"node": *">=\([0-9.]*\)".*/\1/p' "$ROOT/web/package.json")

say() { printf '%s\n' "needs: $*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

# Where the tests look, too (tests/it/support/postgres.rs): PATH, then Debian's folder of server programs.
has_postgres() {
    { has initdb && has pg_ctl && has postgres; } && return
    local folder
    for folder in /usr/lib/postgresql/*/bin; do
        [[ -x $folder/initdb && -x $folder/pg_ctl && -x $folder/postgres ]] && return
    done
    return 1
}

as_root() {
    if [[ $(id -u) -eq 0 ]]; then
        "$@"
    else
        sudo "$@"
    fi
}

# Package lists are fetched once, and only if something is to be installed.
lists_fetched=no
install() {
    if [[ $lists_fetched == no ]]; then
        apt update -qq
        lists_fetched=yes
    fi
    say "installing $*"
    apt install -y -qq --no-install-recommends "$@" >&2
}

# A fresh machine may be at its own updates still: wait for them instead of failing.
apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@"; }

# Debian's server package starts a cluster of its own when it is installed. Nobody asked for one, so it is told
# not to, in a file that goes away again: a later installation by hand behaves as always.
install_postgres() {
    local folder=/etc/postgresql-common/createcluster.d
    local told="$folder/fatia-no-main-cluster.conf"
    install postgresql-common
    as_root mkdir -p "$folder"
    printf 'create_main_cluster = false\n' | as_root tee "$told" >/dev/null
    local result=0
    install postgresql || result=$?
    as_root rm -f "$told"
    return "$result"
}

need_rust() {
    # rustup's folder, for shells that have not read its profile.
    PATH="$PATH:${HOME:-/root}/.cargo/bin"
    if ! has cargo; then
        say "cargo is missing. Install Rust $RUST_MINIMUM or newer, for example with rustup (https://rustup.rs),"
        say "then run this again."
        exit 1
    fi
    local version
    version=$(cargo --version | cut -d' ' -f2)
    if [[ $(printf '%s\n' "$RUST_MINIMUM" "$version" | sort -V | head -n1) != "$RUST_MINIMUM" ]]; then
        say "cargo $version is too old: Rust $RUST_MINIMUM or newer is needed (with rustup: rustup update stable)."
        exit 1
    fi
}

# `cargo fmt` and `cargo clippy` are parts of Rust that a minimal installation leaves out.
need_rust_components() {
    local component missing=()
    for component in fmt clippy; do
        cargo "$component" --version >/dev/null 2>&1 || missing+=("${component/#fmt/rustfmt}")
    done
    [[ ${#missing[@]} -eq 0 ]] && return
    if has rustup; then
        rustup component add "${missing[@]}"
    else
        say "missing parts of Rust: ${missing[*]}. With rustup: rustup component add ${missing[*]}"
        exit 1
    fi
}

# Programs of others by which the tests judge the API: a generator of requests, a validator of its document, and the
# checker of Prometheus's names. They go beside the build folder and touch nothing else of the machine.
JUDGES=${JUDGES:-${HOME:-/root}/.cache/fatia/judges}
WANTED=$ROOT/deploy/ci/requirements.txt

has_python_judges() { [[ -x $JUDGES/python/bin/python ]] && cmp -s "$WANTED" "$JUDGES/python/requirements.txt"; }
has_promtool() { [[ -x $JUDGES/promtool ]]; }

# Python 3.10 or newer, with what makes environments; Debian packs that apart.
has_python() { has python3 && python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

install_python_judges() {
    say "installing into $JUDGES/python: $(grep -v '^#' "$WANTED" | tr '\n' ' ')"
    rm -rf "$JUDGES/python"
    python3 -m venv "$JUDGES/python"
    "$JUDGES/python/bin/pip" install --quiet --disable-pip-version-check -r "$WANTED"
    cp "$WANTED" "$JUDGES/python/requirements.txt"
}

# Debian's package starts a server; only one program of it is wanted, so it is unpacked and not installed.
install_promtool() {
    if has promtool; then
        mkdir -p "$JUDGES"
        ln -sf "$(command -v promtool)" "$JUDGES/promtool"
        return
    fi
    if ! has apt-get || ! has dpkg; then
        say "there is no apt-get here, so the names of Prometheus figures are not checked; put promtool into PATH for that"
        return
    fi
    say "unpacking promtool into $JUDGES"
    local folder
    folder=$(mktemp -d)
    # Its downloads are made by a user of apt's own, who may not enter a private folder.
    chmod 755 "$folder"
    [[ $lists_fetched == yes ]] || { apt update -qq && lists_fetched=yes; }
    (cd "$folder" && apt-get -o APT::Sandbox::User=root download -qq prometheus >/dev/null && dpkg -x ./*.deb .)
    mkdir -p "$JUDGES"
    cp "$folder/usr/bin/promtool" "$JUDGES/promtool"
    rm -rf "$folder"
}

# Node that the pages can be built with; distributions' own may be older.
has_node() {
    has npm && has node && [[ $(printf '%s\n' "v$NODE_MINIMUM" "$(node --version)" | sort -V | head -n1) == "v$NODE_MINIMUM" ]]
}
# Ubuntu's package of Chromium is a snap, which containers cannot run.
is_debian() { has apt-get && grep -q '^ID=debian$' /etc/os-release 2>/dev/null; }
has_chromium() { has chromium || has chromium-browser || has google-chrome; }

# The pages are looked at where they can be built: it is not Rust's fault where they cannot.
want_browser() {
    if ! has_node; then
        say "Node $NODE_MINIMUM or newer is not here, so the web pages are neither built nor looked at"
    elif has_chromium; then
        return
    elif ! is_debian || { [[ $(id -u) -ne 0 ]] && ! has sudo; }; then
        say "there is no Chromium or Chrome here, and it is installed on Debian and with root or sudo only:" \
            "the web pages are not looked at"
    else
        install chromium
    fi
}

main() {
    local purpose=${1:-}
    case $purpose in
        has-node)
            has_node
            return
            ;;
        build | lint | test) ;;
        *)
            say "usage: $0 build|lint|test|has-node"
            exit 2
            ;;
    esac

    need_rust

    local programs=() postgres=no
    has make || programs+=(make)
    # SQLite and Zstandard are compiled from C. `libc6-dev` has the headers, which gcc only recommends.
    has cc || programs+=(gcc libc6-dev)
    [[ $purpose == build ]] || need_rust_components
    [[ $purpose != test ]] || has_postgres || postgres=yes
    [[ $purpose != test ]] || has_python_judges || has_python || programs+=(python3 python3-venv)
    install_missing
    [[ $purpose == test ]] || return 0
    has_python_judges || install_python_judges
    has_promtool || install_promtool
    want_browser
}

# Of the caller's `programs` and `postgres`.
install_missing() {
    [[ ${#programs[@]} -eq 0 && $postgres == no ]] && return

    if ! has apt-get; then
        [[ ${#programs[@]} -eq 0 ]] || say "missing: ${programs[*]} (a C compiler and make, from your system's packages)"
        [[ $postgres == no ]] || say "missing: PostgreSQL's initdb, postgres and pg_ctl, version 14 or newer, in PATH" \
            "(your system's postgresql server package; no running server is needed)"
        say "there is no apt-get here, so install them by hand and run this again."
        exit 1
    fi
    if [[ $(id -u) -ne 0 ]] && ! has sudo; then
        [[ $postgres == no ]] || programs+=(postgresql)
        say "missing packages: ${programs[*]}. Installing them takes root or sudo: apt-get install ${programs[*]}"
        exit 1
    fi

    [[ ${#programs[@]} -eq 0 ]] || install "${programs[@]}"
    [[ $postgres == no ]] || install_postgres
}

main "$@"
