"""The keys of a manifest that a job cannot honour, and what to use instead.

`kubernetes_tree.py` adds them to warnings. A key that is missing here is reported without a reason.
"""

from typing import Final

_LOGIN: Final = "use muster secret set --registry HOST: it serves all jobs of your tenant"
_NO_IMAGE: Final = "the container has no image, so the command runs on the node itself"
_ENGINE: Final = "the node's agent chooses the runtime"
_VOLUMES: Final = (
    "without an image a job sees its node's files; muster submit --upload sends a directory"
)
_RIGHTS: Final = "only runAsUser and runAsGroup are read; a container never gets more rights"
_TENANT: Final = "your key determines the tenant, the user and the limits"
_ORDER: Final = "use muster submit --priority, 0 to 100"
_NETWORK: Final = "a job uses its node's network; reach its ports with muster port-forward"

REASONS: Final = {
    "affinity": "only required node affinity is read: one term, operator In, one value",
    "envFrom": "list the variables, and use muster submit --secret for secrets",
    "valueFrom": (
        "give a value; for a secret, use muster secret set NAME and muster submit --secret NAME"
    ),
    "ephemeral-storage": "local disks are not counted",
    "hostIPC": "a job runs on the node itself",
    "hostNetwork": _NETWORK,
    "hostPID": "a job runs on the node itself",
    "dnsPolicy": _NETWORK,
    "ports": _NETWORK,
    "imagePullPolicy": _NO_IMAGE,
    "imagePullSecrets": _LOGIN,
    "initContainers": "put their work into the command",
    "lifecycle": "put its work into the command",
    "livenessProbe": "only models are probed: muster deploy",
    "readinessProbe": "only models are probed: muster deploy",
    "startupProbe": "only models are probed: muster deploy",
    "namespace": _TENANT,
    "podAffinity": "affinity between jobs is not supported",
    "podFailurePolicy": "every failure counts as one of the retries",
    "preferredDuringSchedulingIgnoredDuringExecution": "only required rules are read",
    "priority": _ORDER,
    "priorityClassName": _ORDER,
    "runtimeClassName": _ENGINE,
    **dict.fromkeys(
        (
            *("allowPrivilegeEscalation", "capabilities", "fsGroup", "privileged", "procMount"),
            *("readOnlyRootFilesystem", "runAsNonRoot", "seccompProfile", "supplementalGroups"),
        ),
        _RIGHTS,
    ),
    "schedulerName": "Muster's own scheduler places it",
    "securityContext": "the node's agent chooses the Unix user (MUSTER_JOB_USERS)",
    "serviceAccountName": _TENANT,
    "shareProcessNamespace": "a job runs on the node itself",
    "tolerations": "nodes have no taints: use muster submit --node-label or --nodelist",
    "topologySpreadConstraints": "use muster submit --anti-affinity",
    "ttlSecondsAfterFinished": (
        "output of ended jobs is deleted by age, size and number (MUSTER_KEEP_*)"
    ),
    "volumeMounts": _VOLUMES,
    "volumes": _VOLUMES,
}
