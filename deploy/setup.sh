#!/usr/bin/env bash
# Install the system packages that a command needs, when they are missing: setup.sh python PYTHON | demo | test
# As root it installs them with apt-get; otherwise it names the one command that root has to run.
set -euo pipefail

missing=()

need() { # need PACKAGE COMMAND...: any one of the commands will do
  local package=$1
  shift
  local command
  for command in "$@"; do
    if compgen -G "$command" > /dev/null || command -v "$command" > /dev/null; then return; fi
  done
  missing+=("$package")
}

install_missing() {
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
    echo "synth: system packages are missing: ${missing[*]}" >&2
    echo "synth: ask root to run: apt-get update && apt-get install -y ${missing[*]}" >&2
    exit 1
  fi
  echo "synth: installing system packages: ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
}

python_is_ready() {
  local python=$1
  if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "synth: Python 3.11 or newer is needed, found ${python:-none}; name one: make PYTHON=/path/to/python3.11" >&2
    exit 1
  fi
  if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
    missing+=("python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv")
  fi
}

case "${1:-}" in
  python) python_is_ready "${2:-}" ;;
  demo) need bubblewrap bwrap ;;
  test)
    need bubblewrap bwrap
    need chromium chromium chromium-browser google-chrome
    need postgresql '/usr/lib/postgresql/*/bin/initdb'
    if [ "$(id -u)" -eq 0 ]; then # only root can start an engine for the tests; others skip them
      need docker.io /usr/sbin/dockerd /usr/bin/dockerd
      need tini /usr/bin/docker-init /sbin/docker-init /usr/libexec/docker/docker-init /usr/bin/tini
      need docker-registry docker-registry
      need debootstrap /usr/sbin/debootstrap
      need iptables /usr/sbin/iptables
    fi
    ;;
  *)
    echo "usage: $0 python PYTHON | demo | test" >&2
    exit 2
    ;;
esac
install_missing
