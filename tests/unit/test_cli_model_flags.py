"""The flags of models become the body of a deployment."""

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from libs.cli.flags.modelflags import model_body, model_flags


@click.command()
@model_flags
def shown(**values: Any) -> None:
    """Print the body that the flags make."""
    values.pop("wait")
    print(json.dumps(model_body(["serve"], "ada", values)))


def body(*flags: str) -> dict[str, Any]:
    result = CliRunner().invoke(shown, flags, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_the_bounds_of_batches_are_one_field() -> None:
    assert body("--batch-max", "32")["batching"] == {"items_max": 32}
    given = body("--batch-max", "8", "--batch-wait", "20ms")
    assert given["batching"] == {"items_max": 8, "wait_ms": 20}
    assert "batch_max" not in given and "batching" not in body()


def test_a_wait_for_others_needs_the_size_of_a_batch() -> None:
    with pytest.raises(click.UsageError, match="needs --batch-max"):
        body("--batch-wait", "5ms")


def test_the_rules_for_adapters_are_one_field() -> None:
    assert body("--adapters-root", "/lora")["adapters"] == {"root": "/lora"}
    given = body("--adapters-root", "/lora", "--adapter-api", "sglang", "--adapters-max", "2")
    assert given["adapters"] == {"root": "/lora", "api": "sglang", "resident_max": 2}
    assert body("--adapter-api", "none")["adapters"] == {"api": "none"}
    assert "adapters" not in body()


def test_adapters_need_the_folder_below_which_they_are() -> None:
    with pytest.raises(click.UsageError, match="need --adapters-root"):
        body("--adapters-max", "2")
