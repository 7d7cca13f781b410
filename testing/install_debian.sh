#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Installs the Debian packages that a target needs and that are missing; without root, says in one line which.
#   testing/install_debian.sh python | services | debian | trial
set -eu
missing=

program() { # NAME PACKAGE
    PATH=$PATH:/usr/sbin command -v "$1" >/dev/null || missing="$missing $2"
}

case $1 in
python)
    python=${PYTHON:-python3}
    command -v "$python" >/dev/null || missing="python3"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
    ;;
services)
    # A service that already runs elsewhere needs no package here.
    if [ -z "${VCSREPLICATOR_TEST_KAFKA:-}" ]; then
        program java default-jre-headless
        program mvn maven
    fi
    [ -n "${VCSREPLICATOR_TEST_AMQP:-}" ] || program rabbitmq-server rabbitmq-server
    program chromium-headless-shell chromium-headless-shell
    program chromedriver chromium-driver
    program promtool prometheus
    program strace strace
    program ssh openssh-client
    program curl curl
    program redis-server redis-server
    # Mercurial 6.3 is compiled, and the client of a warm hg.
    program cc gcc
    "${PYTHON:-python3}" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || missing="$missing python3-dev"
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
    ;;
debian)
    # No program, but without it no package is built.
    [ -e /usr/share/build-essential ] || missing="$missing build-essential"
    program dpkg-buildpackage dpkg-dev
    program dh debhelper
    program dh_virtualenv dh-virtualenv
    ;;
trial)
    program debootstrap debootstrap
    program systemd-nspawn systemd-container
    ;;
*)
    echo "usage: $0 python|services|debian|trial" >&2
    exit 2
    ;;
esac

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing:$missing (Debian package names); install them as root, or point VCSREPLICATOR_TEST_KAFKA, _AMQP and _AWS to services" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # the tests start their own; nothing shall start now
log=$(mktemp)
# shellcheck disable=SC2086
if ! { apt-get -qq update && apt-get -qq install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
rm -f "$log"
