"""mountctl serve: an HTTP server beside a mount, for clients of other hosts and for Spark."""

from __future__ import annotations

import gc
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import click

from mountctl.connect import reading, require_access
from mountctl.daemon import tell_systemd
from mountctl.errors import CommandError, one_line
from mountctl.installation import missing
from mountctl.log_file import log_to_stderr, open_log
from mountctl.options import StoreSettings
from mountctl.output import visible
from mountctl.places import Mount, Place, find, find_mount, mount_at
from mountctl.process import raise_open_files, set_up_allocator

if TYPE_CHECKING:
    from engine import MessageStore
    from fsstore.serve.page.fleet import Fleet, Own
    from fsstore.serve.page.page import Page
    from fsstore.serve.server import HttpOptions, Secrets
    from fsstore.serve.tree import ServedMount, ServedTree

DEFAULT_LISTEN = "127.0.0.1:9870"
"""The port of Hadoop's name nodes."""
TOKEN_FILE_MODE = 0o600

log = logging.getLogger("mountctl")

_FILE = click.Path(path_type=Path, dir_okay=False)


class SecretFiles(NamedTuple):
    """The files that SIGHUP has read again."""

    tokens: Path | None
    certificate: Path | None
    key: Path | None
    client_ca: Path | None

    def load(self) -> Secrets:
        """Read them. UnusableFileError, CommandError, OSError."""
        from fsstore.serve.access import Tokens, read_tokens
        from fsstore.serve.server import Secrets

        tokens = Tokens({} if self.tokens is None else read_tokens(self.tokens))
        if self.certificate is None:
            return Secrets(tokens, None)
        try:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
            tls.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # the system's words for it name no file
            shown = ", ".join(str(path) for path in self[1:] if path is not None)
            raise CommandError(f"{shown} can't be used: {one_line(error)}", exit_code=os.EX_CONFIG) from None
        if self.client_ca is not None:
            tls.verify_mode = ssl.CERT_OPTIONAL
        return Secrets(tokens, tls)


@click.command("serve", short_help="Serve a mount over HTTP.")
@click.argument("place")
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="ADDRESS:PORT", help="Where to listen.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A name of this host; its Spark worker's first.")
@click.option("--tokens", type=_FILE, help="File of mode 0600 with a line NAME TOKEN for each client.")
@click.option("--certificate", type=_FILE, help="The server's certificate chain (PEM), for TLS.")
@click.option("--key", type=_FILE, help="Its private key, if it is not in the same file.")
@click.option("--client-ca", type=_FILE, help="Let in clients with a certificate signed by one of these CAs (PEM).")
@click.option("--insecure", is_flag=True, help="Serve other hosts without TLS, or without tokens.")
@click.option("--access-log", type=_FILE, metavar="FILE", help="A line for each request; - is standard output.")
@click.option("--decode", metavar="COMMAND", help="Also show bodies as COMMAND, run in a shell, prints them.")
@click.option("--fleet", metavar="@GROUP", help="A page of all the group's brokers in ~/.config/fsstore/fleet.toml.")
@click.option("--token-file", type=_FILE, help="Write the first token for HADOOP_TOKEN_FILE_LOCATION, and end.")
def command(
    place: str, listen: str, hosts: tuple[str, ...], tokens: Path | None, certificate: Path | None, key: Path | None,
    client_ca: Path | None, insecure: bool, access_log: Path | None, decode: str | None, fleet: str | None,
    token_file: Path | None,
) -> None:  # fmt: skip
    """Serve the mount of PLACE over HTTP, read-only: /webhdfs/v1/ for Hadoop and Spark, /files/ for other programs,
    and a page for people at /. /datasets?topic=&since=&until= lists the Parquet files of a time.

    On the loopback, users who may read the mount are let in. Any other ADDRESS needs TLS, and tokens or client
    certificates. SIGHUP opens tokens, certificates and the access log anew.

    \b
    Example:
      mountctl serve /mnt/mq
    """
    for module in ("httptools", "jinja2"):
        if find_spec(module) is None:
            raise missing(module, "serve")
    address, port = _parse_listen(listen)
    names = (*hosts, socket.getfqdn())
    files = SecretFiles(tokens, certificate, key, client_ca)
    if token_file is not None:
        _write_token_file(token_file, tokens, {address, *hosts}, port)
        return
    open_to_all = _judge(address, files, insecure)
    mount = find_mount(place)
    brokers = None if fleet is None else _brokers(fleet, mount)
    require_access(mount)
    raise_open_files()
    set_up_allocator()
    log_to_stderr()
    from fsstore.serve.page.page import Page
    from fsstore.serve.server import HttpOptions
    from fsstore.serve.tree import ServedTree

    known = frozenset(name.lower() for name in (*names, "localhost", socket.gethostname(), address))
    with _followed(find(place)) as store:
        options = HttpOptions(address, port, names[0], known, open_to_all)
        tree = ServedTree(os.fspath(mount.mountpoint), partial(_served_mount, mount))
        _serve(tree, Page(tree, store, decode, brokers), store, options, files, access_log)


def _serve(
    tree: ServedTree, page: Page, store: MessageStore | None, options: HttpOptions, files: SecretFiles,
    access_log: Path | None,
) -> None:  # fmt: skip
    from fsstore.serve.server import Server

    address, lines = options.address, None if access_log is None else _AccessLog(access_log)

    def load() -> Secrets:
        if lines is not None:
            lines.open()
        return files.load()

    def ready(port: int) -> None:
        shown = f"[{address}]" if ":" in address else address
        scheme = "http" if files.certificate is None else "https"
        click.echo(f"{tree.mountpoint} is served at {scheme}://{shown}:{port}")
        tell_systemd("READY=1")

    server = Server(tree, store, page, options, load, None if lines is None else lines.write)
    gc.freeze()  # the collector's look at modules and queues took a tenth of a second of a request
    try:
        server.run(ready)
    except OSError as error:
        raise CommandError(f"can't listen at {address}:{options.port}: {one_line(error)}") from None


def _brokers(group: str, mount: Mount) -> Callable[[Own], Fleet]:
    """A function that makes the fleet of a group. UnusableFileError: the fleet file or the tokens; OSError."""
    from fsstore.fleet.hadoop_tokens import own_tokens
    from fsstore.fleet.places import group_of
    from fsstore.serve.page.fleet import Broker, Fleet

    places, tokens = group_of(group), own_tokens()

    def made(own: Own) -> Fleet:
        return Fleet(group, [
            Broker(
                place,
                tokens.get(urlsplit(place.url or "").netloc),
                own if place.path is not None and os.path.realpath(place.path) == str(mount.mountpoint) else None,
            )
            for place in places
        ])  # fmt: skip

    return made


def _parse_listen(text: str) -> tuple[str, int]:
    """Address and port. CommandError: it is neither an IP address nor localhost, with a port."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        address = str(ip_address("127.0.0.1" if host == "localhost" else host))
    except ValueError:
        address = ""
    if not address or not port.isdecimal() or int(port) > 65_535:
        raise CommandError(f"invalid --listen {text!r}", "give an IP address of this host and a port", os.EX_USAGE)
    return address, int(port)


def _judge(address: str, files: SecretFiles, insecure: bool) -> bool:
    """Whether requests without a token are let in from everywhere. CommandError: other hosts may connect, and TLS or
    tokens are missing."""
    has_tls, has_clients = files.certificate is not None, bool(files.tokens or files.client_ca)
    if files.client_ca is not None and not has_tls:
        raise CommandError("--client-ca works through TLS", "give --certificate, too", os.EX_USAGE)
    if not insecure and not ip_address(address).is_loopback and not (has_tls and has_clients):
        lacking = " and ".join([*([] if has_tls else ["--certificate"]), *([] if has_clients else ["--tokens"])])
        remedy = f"give {lacking}, or say --insecure to do without"
        raise CommandError(f"other hosts may connect to {address}", remedy, os.EX_USAGE)
    if insecure and not has_tls:
        click.echo("mountctl: --insecure: without TLS, messages and tokens can be read on their way", err=True)
    if insecure and not has_clients:
        click.echo(f"mountctl: --insecure: all who reach {address} read all messages", err=True)
    return insecure and not has_clients


def _served_mount(mount: Mount) -> ServedMount | None:
    """The mount at the same place now; None: there is none, or one of another store or of a stranger."""
    from fsstore.serve.tree import ServedMount

    now = mount_at(mount.mountpoint)
    if now is None or now.store != mount.store or not now.is_trusted:
        return None
    major, minor = map(int, now.device.split(":"))
    return ServedMount(os.makedev(major, minor), now.allows_others)


@contextmanager
def _followed(place: Place) -> Iterator[MessageStore | None]:
    """The store beside its mount; None, with a warning: its files can't be read here."""
    with ExitStack() as stack:
        try:
            store = stack.enter_context(reading(place, StoreSettings(), "", [], following=True)).store
        except CommandError as error:
            click.echo(visible(f"mountctl: since and until are not served: {error.reason}"), err=True)
            store = None
        yield store


class _AccessLog:
    """The file for lines of the access log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._output = -1

    def open(self) -> None:
        """Open it anew: it may have been renamed. OSError."""
        output = os.dup(1) if self._path == Path("-") else open_log(self._path)
        if self._output >= 0:
            os.close(self._output)
        self._output = output

    def write(self, line: bytes) -> None:
        try:
            os.write(self._output, line)
        except OSError as error:
            log.warning("the access log can't be written: %s", one_line(error))


def _write_token_file(target: Path, tokens: Path | None, hosts: set[str], port: int) -> None:
    """Write the first token as Hadoop's clients read it. UnusableFileError, CommandError, OSError."""
    from fsstore.fleet.hadoop_tokens import hadoop_token_file
    from fsstore.serve.access import read_tokens

    if tokens is None:
        raise CommandError("--token-file has no token to write", "give --tokens", os.EX_USAGE)
    found = {str(row[4][0]) for host in hosts for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    content = hadoop_token_file(next(iter(read_tokens(tokens).values())), sorted(found | hosts), port)
    output = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, TOKEN_FILE_MODE)
    with open(output, "wb") as file:
        os.fchmod(output, TOKEN_FILE_MODE)
        file.write(content)
