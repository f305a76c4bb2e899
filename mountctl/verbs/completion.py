"""mountctl completion: prints a shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mountctl.completion import ASKED


@click.command("completion", short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script with which SHELL completes verbs, options, stores, topics, queues and names for -o.

    \b
    Examples:
      mountctl completion bash > ~/.local/share/bash-completion/completions/mountctl
      mountctl completion zsh > "${fpath[1]}/_mountctl"
      mountctl completion fish > ~/.config/fish/completions/mountctl.fish
    """
    from mountctl.main import cli

    script = get_completion_class(shell)
    assert script is not None  # click has the three shells
    click.echo(script(cli, {}, "mountctl", ASKED).source())
