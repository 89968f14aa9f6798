"""`muster completion`."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--names", hidden=True, metavar="KIND", help="Print names of this kind, one a line.")
def command(shell: str | None, names: str | None) -> None:
    """Print a shell completion script.

    It completes verbs, options and their values, and asks the gateway for the ids of active jobs
    and the names of nodes and models.

    \b
    eval "$(muster completion bash)"                # in ~/.bashrc
    eval "$(muster completion zsh)"                 # in ~/.zshrc, after compinit
    muster completion fish > ~/.config/fish/completions/muster.fish
    """
    if names is not None:
        from libs.cli.terminal.completion_names import print_names

        print_names(names)
        return
    if shell is None:
        raise click.UsageError(f"no shell: give one of {', '.join(SHELLS)}")
    from libs.cli.main import muster
    from libs.cli.terminal.completion_script import script

    print(script(shell, muster), end="")
