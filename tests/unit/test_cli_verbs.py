"""The table of verbs agrees with the modules, and an unknown verb gets a suggestion."""

from importlib import import_module

import click
import pytest

from libs.cli.main import call
from libs.cli.verb_group import OTHER_NAMES, VERBS, suggestion


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_of_the_table_has_a_module_with_the_same_help(name: str) -> None:
    command = import_module(f"libs.cli.verbs.{name.replace('-', '_')}").command
    assert isinstance(command, click.Command)
    assert (command.help or "").splitlines()[0] == VERBS[name].help.rstrip()


def test_names_of_other_systems_suggest_verbs_that_exist() -> None:
    assert {meant.split()[0] for meant in OTHER_NAMES.values()} <= set(VERBS)


def test_a_mistyped_verb_gets_a_suggestion_and_a_strange_one_does_not() -> None:
    assert [suggestion(name) for name in ("canel", "squeue", "xyzzy")] == [
        " (did you mean 'cancel'?)",
        " (did you mean 'ps'?)",
        "",
    ]


def test_the_help_of_redeploy_names_no_defaults() -> None:
    """A flag that is not given keeps the model's current value."""
    helps = {
        verb: [
            param.help or ""
            for param in import_module(f"libs.cli.verbs.{verb}").command.params
            if isinstance(param, click.Option)
        ]
        for verb in ("deploy", "redeploy")
    }
    assert not any("(default" in text for text in helps["redeploy"])
    assert any("(default: 1)" in text for text in helps["deploy"])
    assert len(helps["redeploy"]) == len(helps["deploy"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["scale", "chat", "many"], "invalid value for 'N': 'many' is not a whole number"),
        (["tenant", "set", "x", "--gpus", "lots"], "'--gpus': 'lots' is not a number"),
        (["join"], "muster: URL and --token are missing"),
        (["cp", "results.txt"], "'results.txt' names no job: use JOB:PATH"),
    ],
)
def test_a_wrong_argument_is_one_plain_line(
    arguments: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(arguments) == 2
    error = capfd.readouterr().err
    assert text in error and error.count("\n") == 1
