# Sourced by ../run, in POSIX sh: `environment PROFILE` makes the project runnable here and sets $python. Profiles:
#   mount         what mounting and the verbs need (.ci/requirements.txt)
#   development   that, and what tests, lint, Spark and the demo need (.ci/development.txt)
# System packages are installed only for what is missing; .venv is stamped, so that a second start is immediate.

PATH="${PATH:-/usr/local/bin:/usr/bin:/bin}:/usr/local/sbin:/usr/sbin:/sbin"
export PATH
python=$PWD/.venv/bin/python

environment() {
    profile=$1
    if ! is_ready; then
        install_system_packages
        make_venv
        fingerprint "$profile" >".venv/fsstore-$profile"
    fi
    build_kernel
    link_manual
    PATH="$PWD/.venv/bin:$PATH"
    [ -e /dev/fuse ] || say "no /dev/fuse here, so nothing can be mounted (a container needs --device /dev/fuse --cap-add SYS_ADMIN)"
}

# Whether .venv has what $profile needs, and the system its tools; the development environment serves to mount, too.
is_ready() {
    tools_present || return 1
    is_stamped "$profile" || { [ "$profile" = mount ] && is_stamped development; }
}

is_stamped() {
    [ "$(cat ".venv/fsstore-$1" 2>/dev/null)" = "$(fingerprint "$1")" ]
}

say() { echo "run: $*"; }

die() {
    echo "run: $*" >&2
    exit 1
}

lock_of() {
    case $1 in
    mount) echo .ci/requirements.txt ;;
    development) echo .ci/development.txt ;;
    esac
}

# What .venv was made from: another place, lock or project file makes it anew.
fingerprint() {
    echo "$PWD $(cat .ci/setup.sh .ci/build.txt "$(lock_of "$1")" pyproject.toml | cksum)"
}

tools_present() {
    tools="fusermount3 $python"
    [ "$profile" = development ] && tools="$tools getfattr rsync curl vim mkfs.ext4 java ssh sshd"
    for tool in $tools; do
        command -v "$tool" >/dev/null 2>&1 || return 1
    done
}

install_system_packages() {
    missing=$(missing_packages)
    [ -z "$missing" ] && return
    # shellcheck disable=SC2086 # a list of words
    apt_install $missing || die "could not install: $missing"
}

# apt_install PACKAGE...: `java` stands for the oldest runtime >= 17 that this system has.
apt_install() {
    command -v apt-get >/dev/null 2>&1 || {
        say "there is no apt-get here to install $* with: install what these hold in this system's own way"
        return 1
    }
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1 || {
        say "this needs root or sudo; somebody who has it runs: apt-get install --no-install-recommends $(package_names "$@")"
        return 1
    }
    as_root apt-get update -qq || say "apt-get update failed; going on with the lists that are here"
    packages=$(package_names "$@")
    say "installing system packages: $packages"
    # shellcheck disable=SC2086 # a list of words
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
}

package_names() {
    names=""
    for name in "$@"; do
        [ "$name" = java ] && name=$(java_package)
        names="$names $name"
    done
    echo $names
}

# want COMMAND PACKAGE: for one verb alone; where it can't be had, the verb says what it leaves out.
want() {
    command -v "$1" >/dev/null 2>&1 || apt_install "$2" || say "going on without $1"
}

# Each by what it is for, not by its package's name, so that nothing is installed over what a machine already has.
missing_packages() {
    list=""
    command -v pkg-config >/dev/null 2>&1 || list="$list pkg-config"
    pkg-config --exists fuse3 2>/dev/null || list="$list libfuse3-dev"
    pkg-config --exists libisal 2>/dev/null || list="$list libisal-dev"
    command -v fusermount3 >/dev/null 2>&1 || list="$list fuse3"
    { command -v cc && echo '#include <stdio.h>' | cc -E -; } >/dev/null 2>&1 || list="$list gcc libc6-dev"
    [ -n "$(find_python)" ] || list="$list python3 python3-dev python3-venv"
    if [ "$profile" = development ]; then
        command -v getfattr >/dev/null 2>&1 || list="$list attr"
        command -v rsync >/dev/null 2>&1 || list="$list rsync"
        command -v curl >/dev/null 2>&1 || list="$list curl"
        command -v vim >/dev/null 2>&1 || list="$list vim"
        command -v mkfs.ext4 >/dev/null 2>&1 || list="$list e2fsprogs"
        command -v ssh >/dev/null 2>&1 || list="$list openssh-client"
        command -v sshd >/dev/null 2>&1 || list="$list openssh-server"
        java_fits || list="$list java"
    fi
    echo $list
}

java_fits() {
    version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ]
}

java_package() {
    for package in openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless; do
        apt-cache policy "$package" | grep -q 'Candidate: [0-9]' && echo "$package" && return
    done
    echo default-jre-headless
}

# A Python >= 3.11 that can make an environment and compile an extension; prints its path, or nothing.
find_python() {
    for candidate in python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
        found=$(command -v "$candidate") || continue
        "$found" - 2>/dev/null <<'PYTHON' && echo "$found" && return
import ensurepip, os, sys, sysconfig, venv
sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))
PYTHON
    done
    return 0
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

make_venv() {
    # an environment that was copied or moved still names its old place in its scripts: it is made anew
    if ! grep -qF "$PWD/.venv/" .venv/bin/pip 2>/dev/null || ! "$python" -c 'import pip' 2>/dev/null; then
        base=$(find_python)
        [ -n "$base" ] || die "needs a Python >= 3.11 with venv and headers, and this system's packages have none"
        say "making .venv with $base ($("$base" -V))"
        rm -rf .venv
        "$base" -m venv .venv || die "could not make .venv"
    fi
    say "installing the locked dependencies into .venv ($(lock_of "$profile"))"
    locked .ci/build.txt
    locked "$(lock_of "$profile")"
    "$python" -m pip uninstall -q -y --disable-pip-version-check fsstore 2>/dev/null # this project's name of before
    # as a path, which mypy follows for a program beside this checkout
    "$python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps \
        --config-settings editable_mode=compat -e . || die "pip could not install this project"
}

# Compiles what changed of the kernel since it was compiled here last.
build_kernel() {
    now=$(cat pyproject.toml engine/record/kernel/*.p[yx]* | cksum)
    [ "$(cat .venv/fsstore-kernel 2>/dev/null)" = "$now" ] && return
    say "compiling the kernel"
    "$python" -W ignore -c 'from setuptools import setup; setup()' -q build_ext --inplace ||
        die "could not compile engine/record/kernel"
    echo "$now" >.venv/fsstore-kernel
}

# An editable installation has no data files. man looks for pages beside the folders of PATH.
link_manual() {
    mkdir -p .venv/share/man/man1
    ln -sf ../../../../docs/mountctl.1 .venv/share/man/man1/mountctl.1
}

# locked FILE: install exactly what it names, each file with one of its hashes; what is source alone is built by .ci/build.txt.
locked() {
    "$python" -m pip install -q --disable-pip-version-check --require-hashes --no-build-isolation -r "$1" ||
        die "pip could not install $1"
}
