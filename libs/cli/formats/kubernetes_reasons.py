"""What of a manifest is not honoured, and what to do instead; read by `kubernetes_tree.py`.

A key that is not here is named without a reason.
"""

from typing import Final

_IMAGE: Final = "the command runs on the node itself, without an image"
_VOLUMES: Final = "a job sees its node's files; muster submit --upload takes a directory along"
_TENANT: Final = "whose job it is, and its limits, follow from your key"
_ORDER: Final = "muster submit --priority orders a tenant's jobs, 0 to 100"
_NETWORK: Final = "a job has its node's network; muster port-forward reaches its ports"

REASONS: Final = {
    "affinity": "only what a node must have is read: one term, In, one value",
    "envFrom": "give variables one by one, and secrets by muster submit --secret",
    "valueFrom": (
        "give a value; for a secret muster secret set NAME, then muster submit --secret NAME"
    ),
    "ephemeral-storage": "local disks are not counted",
    "hostIPC": "a job runs on the node itself",
    "hostNetwork": _NETWORK,
    "hostPID": "a job runs on the node itself",
    "dnsPolicy": _NETWORK,
    "ports": _NETWORK,
    "image": _IMAGE,
    "imagePullPolicy": _IMAGE,
    "imagePullSecrets": _IMAGE,
    "initContainers": "put what they do into the command",
    "lifecycle": "put what it does into the command",
    "livenessProbe": "a model is probed: muster deploy",
    "readinessProbe": "a model is probed: muster deploy",
    "startupProbe": "a model is probed: muster deploy",
    "namespace": _TENANT,
    "podAffinity": "jobs are not drawn to each other",
    "podFailurePolicy": "every failure counts as one of the retries",
    "preferredDuringSchedulingIgnoredDuringExecution": "only what must hold is read",
    "priority": _ORDER,
    "priorityClassName": _ORDER,
    "runtimeClassName": _IMAGE,
    "schedulerName": "Muster's own scheduler places it",
    "securityContext": "a job runs as its node's agent does",
    "serviceAccountName": _TENANT,
    "shareProcessNamespace": "a job runs on the node itself",
    "tolerations": "nodes have no taints: muster submit --node-label or --nodelist chooses",
    "topologySpreadConstraints": "muster submit --anti-affinity keeps jobs apart",
    "ttlSecondsAfterFinished": "ended jobs go by age, size and number",
    "volumeMounts": _VOLUMES,
    "volumes": _VOLUMES,
}
