"""`muster completion`."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a shell completion script.

    \b
    eval "$(muster completion bash)"                                 in ~/.bashrc
    eval "$(muster completion zsh)"                                  in ~/.zshrc, after compinit
    muster completion fish > ~/.config/fish/completions/muster.fish
    """
    from libs.cli.main import muster
    from libs.cli.terminal.completion_script import script

    print(script(shell, muster), end="")
