"""The bill of materials and the search for known vulnerabilities.

Tests: tests/unit/test_release_files.py.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.common.errors import Refused

TOOL_S: Final = 600.0
# Tools of the environment itself, which the release does not bring.
TOOLS: Final = ("pip", "setuptools")


class Verdict(NamedTuple):
    """Result of an audit: vulnerable packages with their advisories, and those not looked up."""

    vulnerable: list[str]
    unaudited: list[str]


def bill_of_materials(python: Path, pyproject: Path, into: Path) -> None:
    """Write the CycloneDX bill of materials of an environment."""
    line = ["cyclonedx_py", "environment", str(python), "--pyproject", str(pyproject)]
    options = ["--output-reproducible", "--of", "JSON", "-o", str(into)]
    done = subprocess.run(
        [sys.executable, "-m", *line, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=TOOL_S,
    )
    if done.returncode:
        raise Refused(f"cyclonedx-py failed, so there is no bill of materials: {done.stderr}")


def audited(python: Path, into: Path, osv_url: str = "") -> Verdict:
    """Run pip-audit over an environment, keep its answer, and return the verdict."""
    (site,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    source = ["-s", "osv", "--osv-url", osv_url] if osv_url else []
    options = ["--path", str(site), "--format", "json", "--progress-spinner", "off", *source]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=TOOL_S,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        reason = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        into.write_text(json.dumps({"error": reason[0]}) + "\n")
        return Verdict([], [f"every package ({reason[0]})"])
    into.write_text(json.dumps(answer, indent=1, sort_keys=True) + "\n")
    return verdict(answer)


def verdict(answer: dict[str, Any]) -> Verdict:
    """Return the verdict in pip-audit's answer. A package that it skipped is not clean."""
    vulnerable = []
    unaudited = []
    for each in answer.get("dependencies", []):
        name = str(each["name"])
        if name in TOOLS:
            continue
        if "skip_reason" in each:
            unaudited.append(name)
        elif each.get("vulns"):
            ids = ", ".join(str(found["id"]) for found in each["vulns"])
            vulnerable.append(f"{name} {each.get('version', '')}: {ids}")
    return Verdict(vulnerable, [name for name in unaudited if name != "muster-gpu"])
