#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Writes requirements/*.txt from pyproject.toml: exact versions with hashes, for every system and Python that the project supports.
#   requirements/lock.sh PYTHON
set -eu
cd "$(dirname "$0")/.."
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
"$1" -m venv "$tool"
"$tool/bin/pip" --quiet install 'uv>=0.9,<1'

lock() {
    target=requirements/$1
    shift
    "$tool/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-annotate --no-header "$@" pyproject.toml requirements/build.in --output-file "$tool/locked"
    { echo '# Written by `make lock` from pyproject.toml and requirements/build.in.'; cat "$tool/locked"; } >"$target"
}

lock install.txt --extra services
lock services.txt --extra services --extra dashboard --extra edge --extra decode --extra poll --extra work --extra celery
lock test.txt --all-extras

# What installs the tests' packages.
echo 'uv>=0.9,<1' >"$tool/uv.in"
{
    echo '# Written by `make lock`.'
    "$tool/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
        "$tool/uv.in"
} >requirements/uv.txt

# The newest of each older series that `make test-versions` tests, with the newest evolve and topic that run on it.
lock_older() {
    printf 'mercurial>=%s,<%s\nhg-evolve>=%s\n' "$1" "$2" "$3" >"$tool/older.in"
    "$tool/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-annotate --no-header "$tool/older.in" --output-file "$tool/locked"
    { echo "# Written by \`make lock\`: what \`make test-versions\` tests as Mercurial $1."; cat "$tool/locked"; } \
        >"requirements/mercurial-$1.txt"
}

lock_older 6.3 6.4 11.1,<12
lock_older 6.9 7 12,<13
lock_older 7.0 7.1 12,<13
lock_older 7.1 7.2 12,<13

# What the tests install as a Heptapod host.
{
    echo '# Written by `make lock` from requirements/heptapod.in.'
    "$tool/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-annotate --no-header requirements/heptapod.in
} >requirements/heptapod.txt
