"""Write the part of Prometheus' configuration that says what it scrapes. Pure.

Tests: tests/unit/test_scrape_text.py.
"""

from collections.abc import Sequence
from typing import Any

import yaml

from libs.common.errors import Refused

HEAD = "# Add these to prometheus.yml.\n"


def scrape_text(
    gateways: Sequence[str], nodes: Sequence[str], key_file: str, rules: str, tls: bool
) -> str:
    """Return the jobs of Prometheus for these addresses (HOST:PORT), and its rule files.

    `key_file` holds an operator's key; `tls`: gateways are scraped over HTTPS. Raises Refused.
    """
    for address in (*gateways, *nodes):
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdigit():
            raise Refused(f"{address!r} is no address: write HOST:PORT, for example gpu-1:9460")
    jobs: list[dict[str, Any]] = []
    if gateways:
        jobs.append(_job("muster-gateways", gateways, {"scheme": "https"} if tls else {}))
        if key_file:
            jobs[0]["authorization"] = {"credentials_file": key_file}
    if nodes:
        jobs.append(_job("muster-nodes", nodes, {}))
    if not jobs:
        raise Refused("no address is given: name gateways by --gateway and nodes by --node")
    found = {"rule_files": [rules]} if rules else {}
    return HEAD + yaml.safe_dump({**found, "scrape_configs": jobs}, sort_keys=False)


def _job(name: str, targets: Sequence[str], more: dict[str, Any]) -> dict[str, Any]:
    return {
        "job_name": name,
        "scrape_interval": "15s",
        **more,
        "static_configs": [{"targets": list(targets)}],
    }
