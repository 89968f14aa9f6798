"""The table of verbs agrees with the modules, and an unknown verb gets a suggestion."""

from importlib import import_module

import click
import pytest

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
