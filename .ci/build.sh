# Sourced by deb.sh and wheel.sh, with the project as the folder and $work set: compiles wheels for $python, the
# system's own, from what is locked.
python=$(readlink -f /usr/bin/python3) # what it is by now: another one does not find the environment's packages

pip() { "$work/builder/bin/python" -m pip --disable-pip-version-check -q "$@"; }
say() { echo "${0##*/}: $*" >&2; } # not on standard output: that has the path of what was made

make_builder() {
    "$python" -c 'import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        { say "needs the system's own Python: apt install python3-dev python3-venv"; exit 1; }
    say "making the environment that builds, with $("$python" -V)"
    "$python" -m venv "$work/builder"
    pip install --require-hashes -r .ci/build.txt
}

# A copy of its own: what was compiled in the checkout before may be another Python's.
copy_source() {
    mkdir "$work/source"
    cp -R LICENSE MANIFEST.in README.md pyproject.toml docs engine fsstore mountctl "$work/source"
    find "$work/source/engine" \( -name '*.so' -o -name '*.c' -o -name __pycache__ \) -prune -exec rm -rf {} +
}

# compile LOCK: wheels of what the file LOCK names, and of that copy, in $work/wheels.
compile() {
    say "making wheels of what is locked: $(grep -c == "$1"), of which pyfuse3 is compiled"
    pip wheel --no-deps --no-build-isolation --require-hashes -r "$1" -w "$work/wheels"
    say "compiling this project"
    pip wheel --no-deps --no-build-isolation "$work/source" -w "$work/wheels"
}
