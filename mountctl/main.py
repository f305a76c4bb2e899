"""mountctl: the command line. Loads a verb's module, and turns errors into messages and exit codes."""

from __future__ import annotations

import difflib
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from keyword import iskeyword
from pathlib import Path

import click
from click.shell_completion import CompletionItem, shell_complete

from fsstore.options import DISTRIBUTION
from mountctl.completion import ASKED, propose_for
from mountctl.errors import INTERRUPTED, CommandError, exit_code, one_line, usage_line

VERBS = (
    "mount",
    "umount",
    "restart",
    "status",
    "top",
    "profile",
    "init",
    "topics",
    "put",
    "cat",
    "tail",
    "consume",
    "grep",
    "hist",
    "fields",
    "copy",
    "dlq",
    "wait",
    "replicate",
    "promote",
    "retention",
    "check",
    "backup",
    "restore",
    "export",
    "import",
    "sql",
    "serve",
    "remote",
    "completion",
)
MOUNT_HELPER = "mount.fsstore"
"""A program name: mount(8) calls it for fstab's lines of type fsstore, and it runs the `mount` verb."""

OPENBLAS_THREADS = "OPENBLAS_NUM_THREADS"

NEIGHBOURS = {
    "unmount": "umount",
    "ls": "topics",
    "list": "topics",
    "publish": "put",
    "produce": "put",
    "send": "put",
    "get": "cat",
    "subscribe": "consume",
    "read": "cat",
    "search": "grep",
    "find": "grep",
    "cp": "copy",
    "mirror": "copy",
    "redrive": "dlq",
    "resend": "dlq",
    "deadletters": "dlq",
    "fsck": "check",
    "repair": "check",
    "stats": "status",
    "http": "serve",
    "version": "--version",
    "new": "init",
    "make": "init",
    "create": "topics",
    "mkdir": "topics",
    "delete": "topics",
    "remove": "topics",
    "rm": "topics",
    "rmdir": "topics",
    "du": "topics",
    "rename": "copy",
    "move": "copy",
    "mv": "copy",
    "follow": "tail",
    "head": "cat",
    "less": "cat",
    "print": "cat",
    "show": "cat",
    "view": "cat",
    "count": "hist",
    "schema": "fields",
    "query": "sql",
    "select": "sql",
    "seek": "consume",
    "retry": "dlq",
    "replay": "consume",
    "reset": "consume",
    "groups": "status",
    "lag": "status",
    "config": "status",
    "describe": "status",
    "df": "status",
    "info": "status",
    "log": "status",
    "logs": "status",
    "metrics": "status",
    "ps": "status",
    "refusals": "status",
    "monitor": "top",
    "clean": "retention",
    "expire": "retention",
    "prune": "retention",
    "purge": "retention",
    "truncate": "retention",
    "dump": "export",
    "load": "import",
    "sync": "backup",
    "kill": "umount",
    "stop": "umount",
    "reload": "restart",
    "upgrade": "restart",
    "ui": "serve",
    "web": "serve",
    "man": "help",
}
"""Names that other programs have for a verb."""


@contextmanager
def _few_threads() -> Iterator[None]:
    """Limit OpenBLAS to one thread while it loads. It comes with numpy, and starts a thread for each processor by
    default. No code here uses them."""
    told = OPENBLAS_THREADS in os.environ
    os.environ.setdefault(OPENBLAS_THREADS, "1")
    try:
        yield
    finally:
        if not told:
            del os.environ[OPENBLAS_THREADS]  # processes that a verb starts inherit the user's environment


class Verbs(click.Group):
    """Loads a verb's module on demand: `mount` must not load the engine before its fork, and help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, "help"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return super().get_command(ctx, cmd_name)
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        with _few_threads():
            command: click.Command = importlib.import_module(f"mountctl.verbs.{module}").command
        if ctx.resilient_parsing:
            propose_for(command)
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return names or click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            near = [NEIGHBOURS[name]] if name in NEIGHBOURS else difflib.get_close_matches(name, VERBS, 2)
            guess = f" (did you mean {' or '.join(near)}?)" if near else ""
            raise click.UsageError(f"there is no verb {name!r}{guess}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(
    None,
    "-V",
    "--version",
    package_name=DISTRIBUTION,
    prog_name="mountctl",
    message=f"%(prog)s %(version)s (Python {sys.version.split()[0]}, Linux {os.uname().release})",
)
def cli() -> None:
    """Mount message stores in Apache RocketMQ's format, and look after them.

    Every verb takes a store's directory or its mount point.

    \b
    Example:
      mountctl mount /srv/store /mnt/mq
    """


@cli.command("help")
@click.argument("verbs", nargs=-1, metavar="[VERB]")
def show_help(verbs: tuple[str, ...]) -> int:
    """Show the help of VERB."""
    return run([*verbs, "--help"])


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code. Errors are one line on standard error."""
    try:
        if asked := os.environ.get(ASKED):
            return shell_complete(cli, {}, "mountctl", ASKED, asked)
        with cli.make_context("mountctl", list(arguments)) as context:
            outcome = cli.invoke(context)
    except click.exceptions.Exit as ended:  # --help, --version
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"mountctl: {usage_line(error)}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("mountctl: interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # `mountctl cat ... | head`: the reader has enough
        _discard_output()
        return 0
    except Exception as error:  # the one place where a verb's error becomes a line and a code
        return _tell(error)
    return outcome if isinstance(outcome, int) else 0


def _discard_output() -> None:
    """Discard buffered output. Python would otherwise retry at its exit, and fail with an exit status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: Exception) -> int:
    code = exit_code(error)
    if code == os.EX_SOFTWARE and not isinstance(error, CommandError):
        traceback.print_exception(error)
    click.echo(f"mountctl: {one_line(error)}", err=True)
    return code


def main() -> None:
    """The console script."""
    as_helper = Path(sys.argv[0]).name == MOUNT_HELPER
    code = run((["mount"] if as_helper else []) + sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        code = code or _tell(error)
        _discard_output()
    sys.exit(code)
