"""The part of Prometheus' configuration that scrapes a cluster."""

import pytest
import yaml

from libs.common.errors import Refused
from libs.monitoring.setup.scrape import scrape_text


def test_gateways_are_scraped_with_the_key_and_nodes_without() -> None:
    text = scrape_text(["g:8443"], ["n1:9460", "n2:9460"], "/etc/key", "/etc/rules/*.yaml", True)
    gateways, nodes = yaml.safe_load(text)["scrape_configs"]
    assert (gateways["job_name"], gateways["scheme"]) == ("muster-gateways", "https")
    assert gateways["authorization"] == {"credentials_file": "/etc/key"}
    assert nodes["static_configs"] == [{"targets": ["n1:9460", "n2:9460"]}]
    assert "authorization" not in nodes and "scheme" not in nodes
    assert yaml.safe_load(text)["rule_files"] == ["/etc/rules/*.yaml"]


def test_nodes_alone_need_no_gateway_key_or_rules() -> None:
    found = yaml.safe_load(scrape_text([], ["n1:9460"], "", "", False))
    assert [job["job_name"] for job in found["scrape_configs"]] == ["muster-nodes"]
    assert "rule_files" not in found


def test_gateways_alone_are_scraped_without_a_key() -> None:
    (job,) = yaml.safe_load(scrape_text(["g:8080"], [], "", "", False))["scrape_configs"]
    assert job["job_name"] == "muster-gateways" and "authorization" not in job


@pytest.mark.parametrize("address", ["gpu-1", "http://gpu-1:9460", ":9460", "gpu-1:http"])
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(Refused, match="HOST:PORT, for example gpu-1:9460"):
        scrape_text([], [address], "", "", False)


def test_no_address_at_all_is_refused() -> None:
    with pytest.raises(Refused, match="--gateway and nodes by --node"):
        scrape_text([], [], "", "", False)
