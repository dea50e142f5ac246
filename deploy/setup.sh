#!/usr/bin/env bash
# Install what a command needs, when it is missing: setup.sh python PYTHON | packages VENV_PYTHON | demo | test
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
  echo "synth: installing system packages with apt-get: ${missing[*]} (a minute or two, once)" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
  echo "synth: system packages are installed, $SECONDS s elapsed" >&2
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

say_how_far() { # say_how_far TOTAL: counts pip's lines, and says at least every 15 s how far it is
  local total=$1 n=0 doing=fetching line status said=$SECONDS
  while true; do
    status=0
    read -r -t 5 line || status=$?
    if [ "$status" -eq 0 ]; then
      case $line in
        Collecting* | Processing*) n=$((n + 1)) ;;
        Installing\ collected*) doing=installing ;;
      esac
    elif [ "$status" -le 128 ]; then # the end; more than 128 is a silence of five seconds
      return
    fi
    if [ $((SECONDS - said)) -ge 15 ]; then
      if [ $doing = fetching ]; then
        echo "synth: $n of $total packages fetched, $SECONDS s elapsed" >&2
      else
        echo "synth: $total packages fetched, installing them, $SECONDS s elapsed" >&2
      fi
      said=$SECONDS
    fi
  done
}

install_packages() {
  local python=$1 total
  total=$(grep -c '^[a-zA-Z]' requirements.lock)
  echo "synth: installing $total pinned packages into ${python%/bin/python}: a minute or two, once" >&2
  "$python" -m pip install --disable-pip-version-check --progress-bar off -r requirements.lock | say_how_far "$total"
  "$python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
  echo "synth: packages are installed, $SECONDS s elapsed" >&2
}

case "${1:-}" in
  packages)
    install_packages "${2:?name the python of the environment}"
    exit
    ;;
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
      need kubernetes-client kubectl # tests of programs in pods want 1.31, and say so when it is older
      need openssl openssl
      need debootstrap /usr/sbin/debootstrap
      need iptables /usr/sbin/iptables
    fi
    ;;
  *)
    echo "usage: $0 python PYTHON | packages VENV_PYTHON | demo | test" >&2
    exit 2
    ;;
esac
install_missing
