"""`muster completion`."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the shell's completion of this command.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the shell's completion of this command.

    \b
    eval "$(muster completion bash)"                                 in ~/.bashrc
    eval "$(muster completion zsh)"                                  in ~/.zshrc, after compinit
    muster completion fish > ~/.config/fish/completions/muster.fish
    """
    from libs.cli.main import muster
    from libs.cli.terminal.completion_script import script

    print(script(shell, muster), end="")
