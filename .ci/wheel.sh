#!/bin/sh
# Puts wheels of this project and of pyfuse3, for this system's Python, into build/wheels. Behind `./run wheel`.
# auditwheel copies ISA-L and libfuse into them and names the oldest C library that they run with, so that
# `pip install --find-links build/wheels fsstore-mount` needs no compiler and no headers.
set -eu
cd "$(dirname "$0")/.."
work=$PWD/build/wheel
folder=$PWD/build/wheels # wheels for other Pythons stay there
. .ci/build.sh

# The one dependency without wheels, as it is locked.
lock_of_pyfuse3() { awk '/^[^ #]/ {inside = /^pyfuse3==/} inside' .ci/requirements.txt; }

# The licence of ISA-L has to go with its library.
add_licence() {
    licence=$(find /usr/share/doc/libisal* -name copyright | head -n 1)
    [ -n "$licence" ] || { say "needs the licence of ISA-L: no /usr/share/doc/libisal*/copyright"; exit 1; }
    cp "$licence" "$work/source/LICENSE.isa-l"
}

# What a user does with the folder: pip has to take the wheels, and the program has to work without what compiles.
check() {
    say "installing them into a new environment, and publishing a message"
    "$python" -m venv "$work/check"
    "$work/check/bin/python" -m pip --disable-pip-version-check -q install --only-binary :all: --find-links "$folder" fsstore-mount
    "$work/check/bin/mountctl" init "$work/store" >&2
    echo works | "$work/check/bin/mountctl" put "$work/store" orders >&2
    [ "$("$work/check/bin/mountctl" cat "$work/store" orders)" = works ]
    "$work/check/bin/python" -c 'import pyfuse3'
}

rm -rf "$work"
mkdir -p "$work" "$folder"
make_builder
pip install --require-hashes -r .ci/wheel.txt
lock_of_pyfuse3 >"$work/pyfuse3.txt"
copy_source
add_licence
compile "$work/pyfuse3.txt"
say "copying the libraries into the wheels"
PATH="$work/builder/bin:$PATH" auditwheel repair --strip -w "$folder" "$work"/wheels/*.whl >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; exit 1; }
check
rm -rf "$work"
ls "$folder"/*.whl
