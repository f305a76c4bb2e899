#!/bin/sh
# Builds build/deb/fsstore_VERSION_ARCH.deb for this release of Debian or Ubuntu and its Python: the project, with what
# .ci/requirements.txt locks, in an environment of its own, /usr/lib/fsstore, which nothing else uses or changes.
# Behind `./run deb`; `.ci/deb.sh layout TREE` lays out what is beside the environment, given that one in TREE.
set -eu
cd "$(dirname "$0")/.."
home=usr/lib/fsstore
work=$PWD/build/deb
tree=${2:-$work/tree}
. .ci/build.sh

completion() { "$tree/$home/bin/python" -m mountctl completion "$1"; }

# An environment that has these wheels and no pip, and works where the package puts it.
environment() {
    "$python" -m venv --without-pip "$tree/$home"
    pip --python "$tree/$home/bin/python" install --no-index --no-deps --no-compile "$work"/wheels/*.whl
    find "$tree/$home/bin" -type f ! -name mountctl -delete
    sed -i "1s|.*|#!/$home/bin/python|" "$tree/$home/bin/mountctl"
    sed -i '/^command = /d' "$tree/$home/pyvenv.cfg"
    rm -rf "$tree/$home/share" "$tree/$home/include"
    "$python" -m compileall -q -s "$tree" -p / "$tree/$home/lib"
}

# unit PAGE: the systemd unit in a page of the docs, for this package.
unit() { sed -n '/^\[Unit\]$/,/^```$/{/^```$/d;s|/usr/local/bin|/usr/bin|;p}' "$1"; }

# Everything but the environment.
layout() {
    share=$tree/usr/share
    mkdir -p "$tree/DEBIAN" "$tree/usr/bin" "$tree/usr/sbin" "$share/man/man1" "$share/bash-completion/completions" \
        "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d" "$share/doc/fsstore/examples"
    ln -s "/$home/bin/mountctl" "$tree/usr/bin/mountctl"
    ln -s ../bin/mountctl "$tree/usr/sbin/mount.fsstore"
    gzip -9nc docs/mountctl.1 >"$share/man/man1/mountctl.1.gz"
    completion bash >"$share/bash-completion/completions/mountctl"
    completion zsh >"$share/zsh/vendor-completions/_mountctl"
    completion fish >"$share/fish/vendor_completions.d/mountctl.fish"
    cp LICENSE "$share/doc/fsstore/copyright"
    postrm >"$tree/DEBIAN/postrm"
    chmod 755 "$tree/DEBIAN/postrm"
    unit docs/operations.md >"$share/doc/fsstore/examples/mq.service"
    unit docs/fleet.md >"$share/doc/fsstore/examples/mq-serve.service"
}

# What the daemons of root's mounts leave when they are gone; stores stay.
postrm() {
    cat <<'TEXT'
#!/bin/sh
set -e
if [ "$1" = purge ]; then rm -rf /var/log/fsstore /var/cache/fsstore; fi
TEXT
}

# The packages of the libraries that what is compiled there loads, and of this very Python.
depends() {
    find "$tree/$home" -name '*.so' -exec ldd {} + | awk '$3 ~ "^/(usr/)?lib/" {sub(".*/", "*/", $3); print $3}' |
        sort -u | xargs dpkg -S | cut -d: -f1 | sort -u | tr '\n' ',' | sed 's/,/, /g'
    echo "fuse3, ${python##*/}"
}

control() {
    cat <<TEXT
Package: fsstore
Version: $(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
Section: utils
Priority: optional
Architecture: $(dpkg --print-architecture)
Maintainer: ${DEBFULLNAME:-$(id -un)} <${DEBEMAIL:-$(id -un)@$(hostname)}>
Installed-Size: $(du -sk "$tree" | cut -f1)
Depends: $(depends)
Description: message store that you mount
 A message store whose files are Apache RocketMQ's, and a filesystem over it.
TEXT
}

if [ "${1:-}" = layout ]; then
    layout
    exit
fi
umask 022
rm -rf "$work"
mkdir -p "$work"
make_builder
copy_source
compile .ci/requirements.txt
say "installing them into $home"
environment
layout
control >"$work/control"
mv "$work/control" "$tree/DEBIAN/control"
say "packing $(du -sh "$tree" | cut -f1)"
dpkg-deb --root-owner-group -Zxz --build "$tree" "$work" >/dev/null
rm -rf "$work/builder" "$work/wheels" "$work/source" "$tree"
echo "$work"/*.deb
