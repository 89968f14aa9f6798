"""The sources of settings: their order, and that every mistake is reported."""

from pathlib import Path

import pytest

from libs.common.errors import Refused
from libs.common.settings.configuration import CONFIG_DIR, DEFAULT, ENV_FILE, read, resolve
from libs.common.settings.help_texts import HELP
from libs.common.settings.settings import FILES, Settings, environment, shown
from libs.docs.settings_page import env_example


def given(tmp_path: Path, dotenv: str = "", **files: str) -> dict[str, str]:
    """An environment that names a .env file and a directory with these YAML files."""
    (tmp_path / "env").write_text(dotenv)
    for stem, text in files.items():
        (tmp_path / f"{stem}.yaml").write_text(text)
    return {CONFIG_DIR: str(tmp_path), ENV_FILE: str(tmp_path / "env")}


def test_sources_take_precedence_in_the_documented_order(
    tmp_path: Path,
) -> None:
    environ = given(
        tmp_path, "MUSTER_GATEWAY_PORT=2\n", cluster="gateway_port: 1\nlease_ms: 9000\n"
    )
    assert read(environ=environ).gateway_port == 2
    assert read(environ={**environ, "MUSTER_GATEWAY_PORT": "3"}).gateway_port == 3
    found = resolve(["--gateway-port", "4"], {**environ, "MUSTER_GATEWAY_PORT": "3"})
    assert (found.settings.gateway_port, found.settings.lease_ms, found.problems) == (4, 9_000, ())
    sources = {name: found.sources[name] for name in ("gateway_port", "lease_ms", "nats")}
    assert sources == {
        "gateway_port": "flag",
        "lease_ms": str(tmp_path / "cluster.yaml"),
        "nats": DEFAULT,
    }


def test_without_any_source_all_are_defaults() -> None:
    found = resolve(environ={CONFIG_DIR: "", ENV_FILE: ""})
    assert (found.settings, set(found.sources.values()), found.problems) == (
        Settings(),
        {DEFAULT},
        (),
    )


@pytest.mark.parametrize(
    ("dotenv", "files", "variables", "flags", "problem"),
    [
        (
            "",
            {},
            {"MUSTER_GATEWAY_PROT": "1"},
            [],
            "MUSTER_GATEWAY_PROT is not known: did you mean MUSTER_GATEWAY_PORT?",
        ),
        ("", {}, {"MUSTER_APIKEY": "1"}, [], "did you mean MUSTER_API_KEY?"),
        ("MUSTER_LEAS_MS=1", {}, {}, [], "did you mean MUSTER_LEASE_MS?"),
        (
            "",
            {"cluster": "gateway_prot: 1"},
            {},
            [],
            "gateway_prot is not known: did you mean gateway_port?",
        ),
        ("", {}, {}, ["--log-levl=DEBUG"], "did you mean --log-level?"),
        ("", {}, {}, ["--log-level"], "--log-level needs a value"),
        ("", {"monitoring": "gateway_port: 1"}, {}, [], "gateway_port belongs in cluster.yaml"),
        ("", {"clusters": "gateway_port: 1"}, {}, [], "clusters.yaml is not a configuration file"),
        ("", {"cluster": "gateway_port: [1"}, {}, [], "is not valid YAML"),
        ("", {"cluster": "- gateway_port"}, {}, [], "write one `key: value` per line"),
        ("", {"cluster": "gateway_port: true"}, {}, [], "must be a whole number"),
        ("", {"cluster": "nats: 4222"}, {}, [], "must be a text"),
        (
            "MUSTER_NATS=nats://a, nats://b",
            {},
            {},
            [],
            "line 1: put the value of MUSTER_NATS in quotes",
        ),
        ('MUSTER_NATS="', {}, {}, [], "line 1"),
        ("", {}, {"MUSTER_GATEWAY_PORT": "many"}, [], "MUSTER_GATEWAY_PORT must be a whole number"),
        ("", {}, {"MUSTER_GATEWAY_PORT": "70000"}, [], "out of range: use 0 to 65535"),
        ("", {}, {"MUSTER_LEASE_MS": "0"}, [], "out of range: use 1"),
        ("", {}, {"MUSTER_LOG_LEVEL": "loud"}, [], "must be one of DEBUG"),
        ("", {}, {CONFIG_DIR: "/there/is/none"}, [], "/there/is/none cannot be read"),
        ("", {}, {ENV_FILE: "/there/is/none"}, [], "/there/is/none cannot be read"),
    ],
)
def test_a_mistake_in_any_source_is_refused_by_name(
    tmp_path: Path,
    dotenv: str,
    files: dict[str, str],
    variables: dict[str, str],
    flags: list[str],
    problem: str,
) -> None:
    with pytest.raises(Refused) as refused:
        read(flags, {**given(tmp_path, dotenv, **files), **variables})
    assert problem in str(refused.value)


def test_all_mistakes_are_reported_together(tmp_path: Path) -> None:
    environ = {**given(tmp_path, "MUSTER_ONE=1", cluster="two: 2"), "MUSTER_THREE": "3"}
    assert [
        name in str(resolve(environ=environ).problems)
        for name in ("MUSTER_ONE", "two", "MUSTER_THREE")
    ] == [True] * 3


def test_variables_of_commands_jobs_and_other_programs_are_accepted(tmp_path: Path) -> None:
    environ = given(
        tmp_path, "POSTGRES_PASSWORD=a b\nexport MUSTER_LOG_LEVEL='debug' # loud\n\n# MUSTER_NO=1\n"
    )
    found = resolve(
        environ={**environ, "MUSTER_API_KEY": "k", "MUSTER_JOB_ID": "j", "PATH": "/bin"}
    )
    assert (found.problems, found.settings.log_level) == ((), "DEBUG")


def test_a_problem_never_quotes_a_value_that_may_be_a_secret() -> None:
    problems = resolve(
        environ={
            CONFIG_DIR: "",
            ENV_FILE: "",
            "MUSTER_AUDIT_URL": "postgresql://u:hunter2@db/m",
            "MUSTER_LEASE_MS": "hunter2",
        }
    )
    assert problems.problems and "hunter2" not in str(problems.problems)


def test_only_the_password_of_an_address_is_hidden() -> None:
    assert (
        shown("audit_url", "postgresql+psycopg://muster:hunter2@db/m?sslmode=require")
        == "postgresql+psycopg://muster:***@db/m?sslmode=require"
    )
    assert (
        shown("nats", "nats://u:hunter2@a:4222,nats://b:4222")
        == "nats://u:***@a:4222,nats://b:4222"
    )
    assert shown("nats", "nats://a:4222") == "nats://a:4222"


def test_a_child_s_environment_gives_the_same_settings() -> None:
    told = Settings(gateway_port=9, nats="nats://x", simulated_model="A B")
    assert read(environ={**environment(told), CONFIG_DIR: "", ENV_FILE: ""}) == told


def test_env_example_with_every_line_enabled_gives_the_defaults(tmp_path: Path) -> None:
    lines = [
        line.removeprefix("#") if line.startswith("#MUSTER_") else line
        for line in env_example().splitlines()
    ]
    assert sum(line.startswith("MUSTER_") for line in lines) == len(HELP)
    found = resolve(environ=given(tmp_path, "\n".join(lines)))
    assert (found.settings, found.problems) == (Settings(), ())


def test_every_setting_belongs_to_exactly_one_yaml_file() -> None:
    names = [name for names in FILES.values() for name in names]
    assert sorted(names) == sorted(set(names) & set(HELP))
