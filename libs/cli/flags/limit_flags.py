"""Flags for requests and tokens per minute, as several verbs have them."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from libs.common.quantities import counted

Verb = TypeVar("Verb", bound=Callable[..., Any])

FIELDS: Final = ("requests_per_minute", "tokens_per_minute")


def limit_flags(verb: Verb) -> Verb:
    """Add --requests-per-minute and --tokens-per-minute, None if they are not given."""
    words = ("requests to", "tokens to and from")
    for field, what in reversed(list(zip(FIELDS, words, strict=True))):
        verb = click.option(
            f"--{field.replace('_', '-')}",
            type=click.IntRange(0),
            metavar="N",
            help=f"Maximum {what} models per minute (0: no limit).",
        )(verb)
    return verb


def given(**limits: int | None) -> dict[str, int]:
    """Return the limits that were given."""
    return {name: limit for name, limit in limits.items() if limit is not None}


def in_words(limits: dict[str, Any]) -> str:
    """Return limits in words; empty if there are none."""
    words = [
        counted(limits[field], field.partition("s_")[0]) for field in FIELDS if limits.get(field)
    ]
    return f"{' and '.join(words)} a minute" if words else ""
