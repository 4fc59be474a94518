#!/usr/bin/env bash
# Runs the Dockerfile's steps in order without Docker: those of the building stages in a clean folder that holds what
# .dockerignore lets through and no more, those of a running stage in a bare Debian. Then it starts what came out as the
# image would, and asks for its health as the image does. It takes root, debootstrap, and this machine's Rust and Node.
#
#     deploy/docker/steps.sh FOLDER [STAGE]    # FOLDER is made and left; STAGE is `server` (default) or `agent`
#
# BUILD_CACHE names a folder that is used as `target`, as the Dockerfile's cache would be.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
DOCKERFILE=$ROOT/deploy/docker/Dockerfile
FOLDER=$(realpath -m "${1:?usage: steps.sh FOLDER [STAGE]}")
STAGE=${2:-server}
SYSTEM=$FOLDER/system
SOURCE=$FOLDER/context

say() { printf 'steps: %s\n' "$*"; }

# Lines of a stage, without comments, each instruction on one line.
stage() {
    sed -e '/^#/d' "$DOCKERFILE" | sed -e ':a' -e '/\\$/N; s/\\\n *//; ta' \
        | awk -v stage="$1" '$1 == "FROM" {on = ($4 == stage); next} on && NF'
}

argument() { sed -n "s/^ARG $1=//p" "$DOCKERFILE"; }

# What follows an instruction, as an array of JSON or as a line for the shell.
command_of() {
    local text
    text=$(stage "$1" | sed -n "s/^$2 //p" | tail -n1)
    text=$(sed -E 's/^(--[a-z-]+=[^ ]+ +)*(CMD +)?//' <<<"$text")
    sed -E 's/^\[(.*)\]$/\1/; s/", *"/ /g; s/^"|"$//g' <<<"$text"
}

copy_context() {
    mkdir -p "$SOURCE" "$FOLDER/source"
    local path
    grep -v '^[#*]' "$ROOT/.dockerignore" | while read -r path; do
        case $path in
            !*)
                path=${path#!}
                mkdir -p "$SOURCE/$(dirname "$path")"
                cp -a "$ROOT/$path" "$SOURCE/$path"
                ;;
            *) rm -rf "${SOURCE:?}/$path" ;;
        esac
    done
}

# What is `/source` in a building stage; all but that of the pages go on from one.
source_of() {
    case $1 in
        web) echo "$FOLDER/web" ;;
        *) echo "$FOLDER/source" ;;
    esac
}

# The steps of a building stage; its WORKDIR is `/source`.
build() {
    local instruction rest words from here
    here=$(source_of "$1")
    mkdir -p "$here"
    while read -r instruction rest; do
        say "$1: $instruction $rest"
        case $instruction in
            WORKDIR) ;;
            COPY)
                from=$SOURCE
                if [[ $rest == --from=* ]]; then
                    from=$(source_of "$(sed 's/^--from=\([^ ]*\) .*/\1/' <<<"$rest")")
                    rest=$(sed -E 's#^--from=[^ ]+ /source/##' <<<"$rest")
                fi
                read -ra words <<<"$rest"
                mkdir -p "$here/$(dirname "${words[-1]}")"
                (cd "$from" && cp -a "${words[@]:0:${#words[@]}-1}" "$here/${words[-1]}")
                ;;
            RUN)
                rest=$(sed -E 's/--mount=[^ ]+ +//g' <<<"$rest")
                (cd "$here" && env -u CARGO_TARGET_DIR sh -ec "$rest" </dev/null)
                ;;
            *) say "$instruction is not known to this script" && exit 1 ;;
        esac
    done < <(stage "$1")
}

# The steps of a running stage, in the bare Debian. What says how it is started is read by `start`.
run() {
    local instruction rest words
    while read -r instruction rest; do
        say "$1: $instruction $rest"
        case $instruction in
            RUN)
                chroot "$SYSTEM" /usr/bin/env -i PATH="$PATH_THERE" DEBIAN_FRONTEND=noninteractive \
                    sh -ec "$rest" </dev/null
                ;;
            COPY)
                read -ra words <<<"$rest"
                cp "$FOLDER${words[1]}" "$SYSTEM${words[2]}"
                ;;
            WORKDIR) mkdir -p "$SYSTEM$rest" ;;
            USER | VOLUME | EXPOSE | HEALTHCHECK | ENTRYPOINT | CMD) ;;
            *) say "$instruction is not known to this script" && exit 1 ;;
        esac
    done < <(stage "$1")
}
PATH_THERE=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Becomes a command in the bare Debian, as the image's user in its folder: call it in a subshell.
inside() {
    local user folder
    user=$(command_of "$STAGE" USER)
    folder=$(command_of "$STAGE" WORKDIR)
    exec chroot --userspec="${user:-0:0}" "$SYSTEM" /usr/bin/env -i PATH="$PATH_THERE" sh -c "cd $folder && exec $*"
}

mkdir "$FOLDER"
copy_context
[[ -z ${BUILD_CACHE:-} ]] || ln -s "$(realpath "$BUILD_CACHE")" "$FOLDER/source/target"
[[ $STAGE == agent ]] || build web
build source
case $STAGE in
    server) build build ;;
    agent) build build-agent ;;
esac

say "runtime: debian:$(argument DEBIAN)-slim"
debootstrap --variant=minbase --include=ca-certificates "$(argument DEBIAN)" "$SYSTEM" \
    ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$FOLDER/debootstrap.log"
for file in /etc/apt/sources.list /etc/resolv.conf /etc/apt/apt.conf.d/*proxy*; do
    [[ ! -f $file ]] || cp "$file" "$SYSTEM$file"
done
trap 'umount "$SYSTEM/dev" "$SYSTEM/proc" 2>/dev/null || true' EXIT
mount --bind /dev "$SYSTEM/dev"
mount -t proc proc "$SYSTEM/proc"
run runtime
run "$STAGE"

if [[ $STAGE == agent ]]; then
    say "start: $(command_of agent ENTRYPOINT) --dry-run"
    (inside "$(command_of agent ENTRYPOINT)" --dry-run)
    say "all steps of $STAGE passed"
    exit
fi

say "start: $(command_of server ENTRYPOINT) $(command_of server CMD)"
inside "$(command_of server ENTRYPOINT)" "$(command_of server CMD)" >"$FOLDER/server.log" 2>&1 &
server=$!
health=$(command_of server HEALTHCHECK)
healthy=no
for _ in {1..60}; do
    if (inside "sh -c '$health'"); then healthy=yes && break; fi
    sleep 0.5
done
say "healthy: $healthy"
(inside "$(command_of server ENTRYPOINT)" doctor)
kill -TERM "$server"
ended=0
wait "$server" || ended=$?
cat "$FOLDER/server.log"
[[ $healthy == yes && $ended == 0 ]] || { say "it did not become healthy, or ended with $ended" && exit 1; }
say "all steps of $STAGE passed"
