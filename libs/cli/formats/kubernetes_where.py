"""Where a Pod may run, as a job says it: nodeName, nodeSelector, and of affinity what must hold and
has one way to hold.

Pure. Part of `kubernetes.py`; tests: tests/unit/test_cli_kubernetes.py.
"""

from typing import Any, Final

from yaml.nodes import Node

from libs.cli.formats.kubernetes_tree import Reading, Section

HOSTNAME: Final = "kubernetes.io/hostname"
# Labels that say which device a node has.
PRODUCT: Final = ("nvidia.com/gpu.product", "amd.com/gpu.product-name")
MUST: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def where(pod: Section) -> dict[str, Any]:
    """The job's fields. Raises Refused where two of them leave no node."""
    job: dict[str, Any] = {}
    if node_name := pod.text("nodeName"):
        _one_of(job, pod.reading, pod.at, HOSTNAME, [node_name])
    for key, value, node in pod.section("nodeSelector").pairs():
        _one_of(job, pod.reading, node, key, [value])
    affinity = pod.section("affinity")
    _nodes(job, affinity.section("nodeAffinity").section(MUST))
    for term in affinity.section("podAntiAffinity").sections(MUST):
        _apart(job, term)
    return job


def _nodes(job: dict[str, Any], must: Section) -> None:
    """Several terms are alternatives, which a job cannot say."""
    terms = must.nodes("nodeSelectorTerms")
    if len(terms) > 1:
        must.reading.warn(
            terms[0], f"{must.path}nodeSelectorTerms: not honoured: a job has no alternatives"
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
        _one_of(job, rule.reading, rule.at, key, values)
    else:
        rule.reading.warn(
            rule.at,
            (
                f"{rule.path}{key} {operator}: not honoured: a job asks for one value of a "
                "label, or for some of the nodes"
            ),
        )


def _one_of(job: dict[str, Any], reading: Reading, node: Node, key: str, values: list[str]) -> None:
    """A label with one value; of nodes and of models what every rule allows."""
    if key not in (HOSTNAME, *PRODUCT):
        if job.setdefault("node_labels", {}).setdefault(key, values[0]) != values[0]:
            raise reading.fault(node, f"no node has two values of the label '{key}'")
        return
    field = "node_list" if key == HOSTNAME else "model"
    job[field] = [value for value in values if value in job.get(field, values)]
    if not job[field]:
        raise reading.fault(
            node, f"nothing that '{key}' allows here is allowed by what stands above"
        )


def _apart(job: dict[str, Any], term: Section) -> None:
    """Kubernetes keeps away from pods with all of these labels, a job from jobs with
    one of them.
    """
    labels = term.section("labelSelector").section("matchLabels").pairs()
    topology = term.text("topologyKey")
    if len(labels) == 1 and topology == HOSTNAME:
        job.setdefault("anti_affinity", {})[labels[0][0]] = labels[0][1]
    else:
        term.reading.warn(
            term.at,
            (
                f"{term.path.rstrip('.')}: not honoured: a job keeps away from one label, on the "
                "same node"
            ),
        )
