"""Reads where a Pod may run: nodeName, nodeSelector, and required affinity without alternatives.

Pure. Part of `kubernetes.py`; tests: tests/unit/test_cli_kubernetes.py.
"""

from typing import Any, Final

from yaml.nodes import Node

from libs.cli.formats.kubernetes_tree import Reading, Section

HOSTNAME: Final = "kubernetes.io/hostname"
# Labels with the GPU model of a node.
PRODUCT: Final = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
MUST: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def where(pod: Section) -> dict[str, Any]:
    """Return the placement fields of the job. Raises Refused if two rules exclude each other."""
    job: dict[str, Any] = {}
    if node_name := pod.text("nodeName"):
        _one_of(job, reading=pod.reading, node=pod.at, key=HOSTNAME, values=[node_name])
    for key, value, node in pod.section("nodeSelector").pairs():
        _one_of(job, reading=pod.reading, node=node, key=key, values=[value])
    affinity = pod.section("affinity")
    _nodes(job, affinity.section("nodeAffinity").section(MUST))
    for term in affinity.section("podAntiAffinity").sections(MUST):
        _anti_affinity(job, term)
    return job


def _nodes(job: dict[str, Any], must: Section) -> None:
    """Read node affinity; several terms are alternatives, which a job cannot express."""
    terms = must.nodes("nodeSelectorTerms")
    if len(terms) > 1:
        must.reading.warn(
            terms[0], f"{must.path}nodeSelectorTerms: not honoured: alternatives are not supported"
        )
        return
    for term in terms:
        section = Section(must.reading, term, f"{must.path}nodeSelectorTerms[0].", must.at)
        for rule in (*section.sections("matchExpressions"), *section.sections("matchFields")):
            _rule(job, rule)


def _rule(job: dict[str, Any], rule: Section) -> None:
    key, operator, values = rule.text("key"), rule.text("operator"), rule.texts("values")
    key = HOSTNAME if key == "metadata.name" else key
    if operator == "In" and (len(values) == 1 or (values and key in (HOSTNAME, *PRODUCT))):
        _one_of(job, reading=rule.reading, node=rule.at, key=key, values=values)
    else:
        rule.reading.warn(
            rule.at,
            (
                f"{rule.path}{key} {operator}: not honoured: only In is supported, with one value "
                "of a label or a list of nodes"
            ),
        )


def _one_of(job: dict[str, Any], reading: Reading, node: Node, key: str, values: list[str]) -> None:
    """Add a rule: a label with one value, or the nodes or models that all rules allow."""
    if key not in (HOSTNAME, *PRODUCT):
        if job.setdefault("node_labels", {}).setdefault(key, values[0]) != values[0]:
            raise reading.fault(
                node, f"a node has only one value of the label '{key}': remove one rule"
            )
        return
    field = "node_list" if key == HOSTNAME else "model"
    job[field] = [value for value in values if value in job.get(field, values)]
    if not job[field]:
        raise reading.fault(
            node, f"this rule for '{key}' excludes all values that earlier rules allow"
        )


def _anti_affinity(job: dict[str, Any], term: Section) -> None:
    """Read anti-affinity with one label.

    With several labels, Kubernetes avoids pods that have all of them; a job avoids any of them.
    """
    labels = term.section("labelSelector").section("matchLabels").pairs()
    topology = term.text("topologyKey")
    if len(labels) == 1 and topology == HOSTNAME:
        job.setdefault("anti_affinity", {})[labels[0][0]] = labels[0][1]
    else:
        term.reading.warn(
            term.at,
            (
                f"{term.path.rstrip('.')}: not honoured: anti-affinity supports one label, on the "
                "same node"
            ),
        )
