#!/bin/sh
# Create a virtual environment with everything Gyre needs. Usage: scripts/setup.sh VENV [PYTHON]
# Install Debian's libraries with apt where that is allowed; elsewhere print the command to run.
set -eu
cd "$(dirname "$0")/.."
venv=$1
packages="bubblewrap libibverbs1 librdmacm1 libnuma1 libcurl4"

say() { echo "setup: $*"; }

has_library() { ldconfig -p 2>/dev/null | grep -q "$1"; }

has_system_packages() {
    # ldconfig lives in /sbin, which a plain user's PATH may lack.
    PATH=$PATH:/sbin:/usr/sbin
    command -v bwrap >/dev/null && has_library libibverbs.so.1 && has_library librdmacm.so.1 \
        && has_library libnuma.so.1 && has_library libcurl.so.4
}

install_system_packages() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" -eq 0 ]; then as_root=""
    elif sudo -n true 2>/dev/null; then as_root="sudo"
    else return 1
    fi
    say "installing $packages"
    # shellcheck disable=SC2086  # both are lists of words
    { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $packages; } >"$log" 2>&1
}

find_python() {
    for candidate in "$@" python3 python3.11 python3.12 python3.13; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null \
            && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

python=$(find_python "${2:-}") || { say "Python 3.11 or newer is needed: choose one with PYTHON=..." >&2; exit 2; }
if [ ! -x "$venv/bin/pip" ]; then
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv" || { say "run: sudo apt-get install python3-venv" >&2; exit 2; }
fi
log="$venv/setup.log"

if ! has_system_packages && ! install_system_packages; then
    say "some system libraries could not be installed; run: sudo apt-get install $packages" >&2
fi

say "installing Python packages (takes a few minutes the first time)"
"$venv/bin/pip" install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
say "done: run $venv/bin/gyre"
