"""docs/fleet.md, 2 and 3: who may read from a server, and what one client may take."""

from __future__ import annotations

import base64
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest

from fsstore.fleet.hadoop_tokens import hadoop_token_file
from fsstore.fleet.http import ClientCertificateError
from fsstore.fleet.sources import MountedSource, ServedSource
from tests.mount.harness import as_user
from tests.mountctl.conftest import Site, eventually, fill, mountctl, site_in, succeed
from tests.mountctl.served import CERTIFICATES, FIRST_TOKEN, SECOND_TOKEN, Server, served, tokens_in

STRANGER = 64_103
needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A mount of ten messages for its own user, which tests leave as it is."""
    for site in site_in(tmp_path_factory.mktemp("served")):
        fill(site.store)
        yield site.mounted()


def answer_to_stranger(server: Server, folder: Path) -> str:
    """The status with which another user of this machine is answered."""
    command = f"curl -s -o /dev/null -w '%{{http_code}}' {server.origin}/files/orders.log"
    return as_user(STRANGER, command, folder).stdout


@needs_users
def test_users_of_this_machine(site: Site) -> None:
    """2.1 On the loopback, without a token, the server's own user and root may read. Other users may read only if
    the mount lets them in. The kernel tells the server which user owns a socket."""
    fill(site.store)
    for options, answer in (((), "403"), (("--allow-other",), "200")):
        site.mounted(*options)
        with served(site.mountpoint, site.log.parent) as server:
            assert server.ask("/files/orders/0/0").body == b"order 0"
            assert answer_to_stranger(server, Path("/")) == answer
        succeed("umount", site.mountpoint)


def test_other_addresses_take_tls_and_tokens(mounted: Site, tmp_path: Path) -> None:
    """2.2 The server listens on another address only with a certificate, and with tokens or a CA for client
    certificates. `--insecure` lifts this rule, and prints which protection is missing."""
    tokens, certificate = tokens_in(tmp_path / "tokens", a=FIRST_TOKEN), CERTIFICATES / "server.pem"
    for options in ((), ("--tokens", tokens), ("--certificate", certificate)):
        refused = mountctl("serve", mounted.mountpoint, "--listen", "0.0.0.0:0", *options)
        assert (refused.returncode, refused.stdout) == (os.EX_USAGE, "")
        assert "other hosts may connect to 0.0.0.0: give --" in refused.stderr
    assert mountctl("serve", mounted.mountpoint, "--listen", "broker-a:9870").returncode == os.EX_USAGE
    whole = "--tokens", tokens, "--certificate", certificate
    with served(mounted.mountpoint, tmp_path, *whole, address="0.0.0.0") as server:
        assert server.ask("/files/orders/0/0", Authorization=f"Bearer {FIRST_TOKEN}").body == b"order 0"
        assert "--insecure" not in server.messages.read_text()
    with served(mounted.mountpoint, tmp_path, "--insecure", address="0.0.0.0") as server:
        assert server.ask("/files/orders/0/0").body == b"order 0"
        said = server.messages.read_text()
        assert "without TLS, messages and tokens can be read on their way" in said
        assert "all who reach 0.0.0.0 read all messages" in said


def test_tokens(mounted: Site, tmp_path: Path) -> None:
    """2.3 A valid token, in `Authorization: Bearer` or as Hadoop's delegation token, lets its holder in. Any other
    token is answered 401. SIGHUP makes the server read the token file and the certificates again."""
    tokens, for_hadoop = tokens_in(tmp_path / "tokens", spark=FIRST_TOKEN, duck=SECOND_TOKEN), tmp_path / "hadoop"
    succeed("serve", mounted.mountpoint, "--tokens", tokens, "--token-file", for_hadoop)
    assert for_hadoop.stat().st_mode & 0o777 == 0o600
    assert for_hadoop.read_bytes() == hadoop_token_file(FIRST_TOKEN, ["127.0.0.1"], 9870)
    with served(mounted.mountpoint, tmp_path, "--tokens", tokens) as server:

        def status(token: str) -> list[int]:
            as_parameter = f"/webhdfs/v1/orders.log?op=GETFILESTATUS&delegation={delegation(token)}"
            as_header = server.ask("/files/orders.log", Authorization=f"Bearer {token}")
            return [as_header.status, server.ask(as_parameter).status]

        assert [status(FIRST_TOKEN), status(SECOND_TOKEN)] == [[200, 200], [200, 200]]
        for wrong in (FIRST_TOKEN[:-1], f"{FIRST_TOKEN}0", FIRST_TOKEN.upper(), "", "x" * 5_000):
            assert status(wrong) == [401, 401]
        for malformed in ("", "AAAA", "!", "_____w", quote("ä" * 40)):
            refused = server.ask(f"/webhdfs/v1/orders.log?op=GETFILESTATUS&delegation={malformed}")
            assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        tokens_in(tokens, duck=SECOND_TOKEN)
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: status(FIRST_TOKEN) == [401, 401], "the token is no longer valid")
        assert status(SECOND_TOKEN) == [200, 200]
        tokens.write_text("broken")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: "stay as they were" in server.messages.read_text(), "the broken file is refused")
        assert status(SECOND_TOKEN) == [200, 200]
    certificate = tmp_path / "certificate.pem"
    certificate.write_bytes((CERTIFICATES / "server.pem").read_bytes())
    with served(mounted.mountpoint, tmp_path, "--certificate", certificate) as server:
        assert server.ask("/files/orders/0/0").status == 200
        certificate.write_bytes((CERTIFICATES / "client.pem").read_bytes())  # which is no server's
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: is_mistrusted(server), "the other certificate is used")


def is_mistrusted(server: Server) -> bool:
    """Whether the server's certificate is none for its name."""
    try:
        server.ask("/healthz")
    except ssl.SSLCertVerificationError:
        return True
    return False


def delegation(token: str) -> str:
    """A token as Hadoop's client puts it into a URL."""
    size = len(token).to_bytes(2, "big") if len(token) > 255 else bytes((len(token),))
    encoded = size if len(token) <= 127 else bytes((144 - len(size),)) + size
    service = b"\x12WEBHDFS delegation\x0e127.0.0.1:9870"
    return base64.urlsafe_b64encode(b"\0" + encoded + token.encode() + service).decode().rstrip("=")


def test_files_of_tokens(mounted: Site, tmp_path: Path) -> None:
    """2.4 A token file is refused if other users may read it, or if a token in it has less than 128 bits."""
    tokens = tmp_path / "tokens"
    reasons = {
        f"a {FIRST_TOKEN[:31]}": "the token of a is shorter than 128 bits",
        "a 123456789abcdefghijkl": "the token of a is shorter than 128 bits",
        f"a {'ab' * 32}": "the token of a is shorter than 128 bits",
        FIRST_TOKEN: "entry 1 is not NAME TOKEN",
        f"a {FIRST_TOKEN}\nb {FIRST_TOKEN}": "entry 2 repeats",
        "# none": "there is no token",
    }
    for text, reason in reasons.items():
        tokens.touch(0o600)
        tokens.write_text(text)
        refused = mountctl("serve", mounted.mountpoint, "--tokens", tokens, "--listen", "127.0.0.1:0", cwd=tmp_path)
        assert refused.returncode == os.EX_CONFIG
        assert reason in refused.stderr
        assert FIRST_TOKEN not in refused.stderr
    tokens_in(tokens, a=FIRST_TOKEN).chmod(0o640)
    refused = mountctl("serve", mounted.mountpoint, "--tokens", tokens, "--listen", "127.0.0.1:0", cwd=tmp_path)
    assert refused.returncode == os.EX_CONFIG
    assert "mode 0600" in refused.stderr


def test_names_of_the_server(mounted: Site, tmp_path: Path) -> None:
    """2.5 A request whose `Host` is not a name of the server is answered 421. A request that a page of another site
    sent is answered 403."""
    with served(mounted.mountpoint, tmp_path, "--host", "Broker-A.example") as server:
        for known in ("localhost", "127.0.0.1:9870", "broker-a.example:1", "LOCALHOST", socket.gethostname()):
            assert server.ask("/files/orders/0/0", Host=known).status == 200, known
        for other in ("evil.example", "127.0.0.2", "", "localhost.evil.example", "[::1]"):
            for path in ("/files/orders/0/0", "/webhdfs/v1/?op=LISTSTATUS", "/healthz", "/metrics", "/datasets"):
                assert server.ask(path, Host=other).status == 421, other
        assert server.ask("/files/orders/0/0", Sec_Fetch_Site="cross-site").status == 403
        assert server.ask("/files/orders/0/0", Sec_Fetch_Site="none").status == 200


def test_certificates_of_clients(mounted: Site, tmp_path: Path) -> None:
    """2.6 With `--client-ca`, a client with a certificate signed by that CA may read without a token. Any other
    certificate ends the handshake."""
    options = "--certificate", CERTIFICATES / "server.pem", "--client-ca", CERTIFICATES / "ca.pem"
    with served(mounted.mountpoint, tmp_path, *options) as server:
        content = (mounted.mountpoint / "orders.log").read_bytes()
        url = "/webhdfs/v1/orders.log?op=OPEN&direct=1"
        assert server.ask(url, certificate=CERTIFICATES / "client.pem").body == content
        assert server.ask(url, certificate=CERTIFICATES / "client.pem", Range="bytes=0-1").body == content
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.ask(url, certificate=CERTIFICATES / "stranger.pem")
        assert {line[1] for line in server.logged("OPEN", 2)} == {"certificate:spark-job"}


def test_tokens_are_not_logged(mounted: Site, tmp_path: Path) -> None:
    """2.7 Tokens appear neither in the access log nor in the server's log."""
    tokens = tokens_in(tmp_path / "tokens", spark=FIRST_TOKEN)
    with served(mounted.mountpoint, tmp_path, "--tokens", tokens) as server:
        for token in (FIRST_TOKEN, SECOND_TOKEN):
            secret = delegation(token)
            server.ask("/files/orders.log", Authorization=f"Bearer {token}")
            server.ask(f"/webhdfs/v1/orders.log?op=OPEN&delegation={secret}")
            server.ask(f"/webhdfs/v1/none?op=OPEN&direct=1&delegation={secret}")
            server.ask(f"/other?delegation={secret}")
        server.logged(" /other ", 2)
        said = server.access_log.read_text() + server.messages.read_text()
        said += Path(f"/proc/{server.process.pid}/cmdline").read_text()
        assert "token:spark" in said
        for token in (FIRST_TOKEN, SECOND_TOKEN):
            assert token not in said
            assert delegation(token) not in said


@needs_users
def test_a_clients_share_of_connections(mounted: Site, tmp_path: Path) -> None:
    """3.1 A client (a token, a certificate, a user or an address) may hold a hundredth of the connections. Its next
    connection is answered 429, while other clients are served."""
    with served(mounted.mountpoint, tmp_path) as server, ExitStack() as stack:
        shown = int(Path(f"/proc/{server.process.pid}/limits").read_text().partition("Max open files")[2].split()[0])
        share = max(min((shown - 512) // 3, 10_000) // 100, 16)
        held = [stack.enter_context(server.connect()) for _ in range(share)]
        for connection in held:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 OK" in connection.recv(1 << 10)
        refused = server.ask("/files/orders/0/0")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert b"connections already" in refused.body
        assert answer_to_stranger(server, Path("/")) == "403"  # it is heard
        held[0].close()
        eventually(lambda: server.ask("/files/orders/0/0").status == 200, "a connection of this user is free")


def test_headers_without_end(mounted: Site, tmp_path: Path) -> None:
    """3.2 Headers of more than 16 KiB are answered 431. Headers that take 10 s, or 60 s of silence, end the
    connection."""
    with served(mounted.mountpoint, tmp_path) as server:
        with server.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4_000)
            assert b" 431 " in connection.recv(1 << 16)
        with server.connect() as connection:
            connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            assert b" 400 " in connection.recv(1 << 16)
        assert server.ask("/files/orders/0/0").status == 200


def test_clients_that_take_nothing(site: Site, tmp_path: Path) -> None:
    """3.3 A client that stops reading an answer blocks only its own connection."""
    fill(site.store)
    site.mounted()
    with (site.mountpoint / "orders/1/append").open("wb", buffering=0) as append:
        for _ in range(32):
            append.write(os.urandom(512 << 10).replace(b"\n", b" ") + b"\n")
    content = (site.mountpoint / "orders/1.log").read_bytes()
    with served(site.mountpoint, tmp_path) as server, ExitStack() as stack:
        for _ in range(15):
            connection = stack.enter_context(server.connect())
            connection.sendall(b"GET /files/orders/1.log HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(3):
            assert server.ask("/files/orders/1.log").body == content
        stack.close()
        opened = Path(f"/proc/{server.process.pid}/fd")
        eventually(lambda: not any("/orders/" in os.path.realpath(file) for file in opened.iterdir()), "all is closed")


def test_a_mount_that_goes_and_comes(site: Site, tmp_path: Path) -> None:
    """3.4 While the mount is gone, or another store is mounted in its place, requests are answered 503 with
    Retry-After. When the mount is back, requests are served again at once."""
    fill(site.store)
    site.mounted()
    (site.mountpoint / "orders/1/append").write_bytes(b"x" * 100_000 + b"\n")
    urls = ("/files/orders/0/0", "/webhdfs/v1/orders?op=LISTSTATUS", "/datasets?topic=orders", "/healthz")
    with served(site.mountpoint, tmp_path) as server, server.connect() as idle:
        for method in (b"HEAD", b"GET"):  # and the connection stays open, which keeps no unmount from succeeding
            idle.sendall(method + b" /files/orders/1/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while received.count(b"x") < 100_000:
            received += idle.recv(1 << 16)

        def statuses() -> set[tuple[int, bool]]:
            answers = [server.ask(url) for url in urls]
            return {(answer.status, "retry-after" in answer.headers) for answer in answers}

        assert statuses() == {(200, False)}
        succeed("restart", site.mountpoint)
        assert statuses() == {(200, False)}
        succeed("umount", site.mountpoint)
        assert statuses() == {(503, True)}
        other = site.log.parent / "other"
        fill(other)
        succeed("mount", "--log-file", site.log, other, site.mountpoint)
        assert statuses() == {(503, True)}
        succeed("umount", site.mountpoint)
        site.mounted()
        assert statuses() == {(200, False)}


def test_a_client_certificate_of_a_driver(mounted: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5.12 To a server that accepts only client certificates, the driver and a stream's tasks show the certificate
    in `FSSTORE_CLIENT_CERTIFICATE`, a PEM file with the chain and its key. An unusable certificate is an error that
    names the file."""
    options = "--certificate", CERTIFICATES / "server.pem", "--client-ca", CERTIFICATES / "ca.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
    with served(mounted.mountpoint, tmp_path, *options) as server:
        source, here = ServedSource("a", server.origin, None), MountedSource("a", str(mounted.mountpoint))
        source.files(None, None, None)
        [line] = server.logged("datasets")
        assert line[1].startswith("user:")
        monkeypatch.setenv("FSSTORE_CLIENT_CERTIFICATE", str(CERTIFICATES / "client.pem"))
        [file] = source.files(None, None, None)
        assert [file] == here.files(None, None, None)
        with source.range_file(file.part) as found:
            assert found.readall() == (mounted.mountpoint / "@parquet" / file.path).read_bytes()
        assert {line[1] for line in server.logged(" ", 5)[1:]} == {"certificate:spark-job"}
        for content in ("none", (CERTIFICATES / "ca.pem").read_text()):
            (bad := tmp_path / "bad.pem").write_text(content)
            monkeypatch.setenv("FSSTORE_CLIENT_CERTIFICATE", str(bad))
            with pytest.raises(ClientCertificateError, match=r"bad\.pem: this is not a certificate with its key"):
                source.files(None, None, None)
