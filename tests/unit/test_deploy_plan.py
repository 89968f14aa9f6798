"""The configuration of a deployment: every fault is named, and the example is valid."""

from pathlib import Path

import pytest
import yaml

from libs.common.errors import Refused
from libs.deploy import plan as p
from libs.deploy.__main__ import main


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "muster.whl"
    path.write_bytes(b"")
    return path


def written(tmp_path: Path, made: Path, **changes: object) -> Path:
    plan = yaml.safe_load(p.EXAMPLE) | {"wheel": str(made)} | changes
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(plan))
    return path


def test_the_example_is_valid(tmp_path: Path, wheel: Path) -> None:
    plan = p.load(written(tmp_path, wheel))
    assert list(plan.nodes) == ["gpu-01", "gpu-02"]
    assert p.chosen(plan, "all") == ["gpu-01", "gpu-02"]
    assert p.chosen(plan, "gpu-02") == ["gpu-02"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": {"GPU 1": {"ssh": "root@h"}}}, "is not a name"),
        ({"nodes": {"a": {"ssh": "-oProxyCommand=x"}}}, "is not an ssh destination"),
        ({"nodes": {"a": {"ssh": "h", "simulated_gpus": 65}}}, "use 0 to 64"),
        ({"prefix": "relative"}, "is not an absolute path"),
        ({"state": "/a; rm -rf /"}, "is not an absolute path"),
        ({"wheel": "none.whl"}, "does not exist"),
        ({"port": 0}, "out of range"),
        ({"settings": {"MUSTER_AUDIT_URL": "x"}}, "small letters without MUSTER_"),
        ({"settings": {"log_level": "INFO\nMUSTER_X=1"}}, "a control character"),
        ({"unknown": 1}, "unknown"),
        ({"head": "h"}, "head"),
        ({"head": {"ssh": "h", "listen": "h", "schedulers": 0}}, "head.schedulers: 0 .* 1 to 3"),
        ({"health_s": 6}, "health_s: 6 is out of range: use 30 to"),
        ({"head": {"ssh": "h", "listen": "h", "quotas": 4}}, "head.quotas: 4 .* 1 to 3"),
        ({"head": {"ssh": "h", "listen": "h", "audits": "x"}}, "head.audits"),
    ],
)
def test_a_fault_is_named(
    tmp_path: Path, wheel: Path, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        p.load(written(tmp_path, wheel, **changes))


def test_a_node_that_is_not_in_the_file_is_refused(tmp_path: Path, wheel: Path) -> None:
    with pytest.raises(Refused, match="gpu-09"):
        p.chosen(p.load(written(tmp_path, wheel)), "gpu-01,gpu-09")


def test_init_writes_an_example_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.yaml"
    assert main(["--init", str(path)]) == 0
    assert path.read_text() == p.EXAMPLE
    assert main(["--init", str(path)]) == 2
    assert main([]) == 2
    assert main(["--config", str(tmp_path / "none")]) == 2
    assert "--init" in capsys.readouterr().err
    path.write_text("a: [")
    assert main(["--config", str(path)]) == 2


def test_settings_are_quoted_lines_of_an_environment_file() -> None:
    assert p.environment({"log_level": "INFO"}) == 'MUSTER_LOG_LEVEL="INFO"\n'
    said = p.environment({"audit_url": 'postgresql://a:p#"\\$@h/d'})
    assert said == 'MUSTER_AUDIT_URL="postgresql://a:p#\\"\\\\$@h/d"\n'
