#!/bin/sh
# Runs Claude Code once inside a box. Needs a shell, coreutils and sed; everything else is the harness's own.
# Usage: claude_code.sh HERE VERSION PROGRAM SKILLS INSTRUCTION RESUME ARGUMENT...
#   HERE         what the engine uploaded: config/ is the start of the harness's own directory
#   VERSION      the pinned one
#   PROGRAM      path of the binary; empty: the one of this machine's kind that is bound into the box
#   SKILLS       directory of the task's skills; empty: none
#   INSTRUCTION  file that becomes standard input; "-": standard input as it is; empty: nothing
#   RESUME       "yes": a later step goes on in the session of the step before
# The harness's state is in CLAUDE_CONFIG_DIR. Exit code 64: the harness itself could not be started.
set -u
here=$1 version=$2 program=$3 skills=$4 instruction=$5 resume=$6
shift 6
logs=/logs/agent

fail() {
    echo "claude-code: $1" >&2
    exit 64
}

if [ -z "$program" ]; then
    case $(uname -m) in
        x86_64) machine=x64 ;;
        aarch64 | arm64) machine=arm64 ;;
        *) fail "no package for $(uname -m)" ;;
    esac
    libc=
    for loader in /lib/ld-musl-*; do [ ! -e "$loader" ] || libc=-musl; done
    program=/.synth/tools/claude-code/claude-code-linux-$machine$libc/claude
    [ -e "$program" ] || fail "the package claude-code-linux-$machine$libc is not installed beside the others"
fi
found=$("$program" --version 2>&1) || fail "$program does not start here: $found"
case $found in
    "$version "*) ;;
    *) fail "version $version is pinned, $program is $found" ;;
esac

mkdir -p "$logs" "$CLAUDE_CONFIG_DIR" || fail "$CLAUDE_CONFIG_DIR cannot be made"
session=$CLAUDE_CONFIG_DIR/.synth-session
if [ -s "$session" ] && [ "$resume" = yes ]; then
    set -- --resume "$(cat "$session")" "$@"
else
    cp -R "$here/config/." "$CLAUDE_CONFIG_DIR/" || fail "the profile's files cannot be copied"
    cat /proc/sys/kernel/random/uuid > "$session" || fail "no session id"
    set -- --session-id "$(cat "$session")" "$@"
fi
if [ -n "$skills" ]; then
    mkdir -p "$CLAUDE_CONFIG_DIR/skills"
    cp -R "$skills/." "$CLAUDE_CONFIG_DIR/skills/" || fail "the task's skills cannot be read: $skills"
fi

output=$logs/claude-code.jsonl
case $instruction in
    "") "$program" "$@" < /dev/null > "$output" ;;
    -) "$program" "$@" > "$output" ;;
    *) "$program" "$@" < "$instruction" > "$output" ;;
esac
code=$?
mkdir -p "$logs/sessions"
cp -R "$CLAUDE_CONFIG_DIR/projects/." "$logs/sessions/" 2> /dev/null
ended=$(tail -n 1 "$output")
printf '%s\n' "$ended"
case $ended in
    *'"type":"result"'*'"is_error":true'*)
        reason=$(printf '%s' "$ended" | sed -n 's/.*"result":"\(\(\\.\|[^"\\]\)*\)".*/\1/p')
        kind=$(printf '%s' "$ended" | sed -n 's/.*"subtype":"\([a-z_]*\)".*/\1/p')
        echo "claude-code: ${reason:-$kind}" >&2
        [ "$code" -ne 0 ] || code=1
        ;;
esac
exit "$code"
