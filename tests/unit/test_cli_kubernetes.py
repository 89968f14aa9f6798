"""Kubernetes Pods and Jobs: the resulting jobs, and a warning for each ignored part."""

import pytest

from libs.cli.formats.job_fields import Written
from libs.cli.formats.jobfile import read_jobs
from libs.common.errors import Refused
from libs.common.model import JobId
from services.api_gateway.intents.job_intents import submission

GIB = 1 << 30

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: notebook
  namespace: team-a
  labels: {app: notebook}
  annotations:
    kaiwo.ai/gpu-fraction: "0.5"
    kaiwo.ai/gpu-sharing: "true"
    kaiwo.ai/gpu-isolation: time-slicing
    kaiwo.ai/enable-analytics: "true"
    prometheus.io/scrape: "true"
spec:
  restartPolicy: Never
  nodeSelector:
    kubernetes.io/hostname: mi300-01
    disk: nvme
  containers:
    - name: main
      image: rocm/pytorch:latest
      workingDir: /workspace
      command: ["jupyter", "lab"]
      args: ["--port", "$(PORT)", "$$HOME", "$(NOPE)"]
      env:
        - {name: PORT, value: "8888"}
        - name: NODE
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
      resources:
        limits: {amd.com/gpu: 1, memory: 64Gi}
        requests: {cpu: 500m, memory: 32Gi}
      volumeMounts:
        - {name: data, mountPath: /data}
  volumes:
    - name: data
      emptyDir: {}
"""

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  generateName: train-
  creationTimestamp: null
spec:
  backoffLimit: 2
  activeDeadlineSeconds: 3600
  completions: 4
  template:
    metadata:
      labels: {app: train}
    spec:
      restartPolicy: OnFailure
      terminationGracePeriodSeconds: 60
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - key: nvidia.com/gpu.product
                    operator: In
                    values: [NVIDIA-H100-80GB-HBM3, NVIDIA-H200]
                  - {key: zone, operator: In, values: [a]}
                  - {key: zone, operator: NotIn, values: [b]}
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - labelSelector: {matchLabels: {app: train}}
              topologyKey: kubernetes.io/hostname
      tolerations:
        - {key: nvidia.com/gpu, operator: Exists}
      containers:
        - name: trainer
          command: [python, train.py]
          resources:
            limits:
              nvidia.com/gpu: "8"
              cpu: "64"
              memory: 512Gi
status: {}
"""

PLAIN = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  containers:\n  - command: [a]\n"


def only(text: str) -> Written:
    (written,) = read_jobs(text, "k.yaml")
    return written


def limited(limits: str, annotations: str = "{}") -> Written:
    return only(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{annotations: {annotations}}}\n"
        f"spec: {{containers: [{{command: [a], resources: {{limits: {limits}}}}}]}}\n"
    )


def fault(text: str) -> str:
    with pytest.raises(Refused) as caught:
        read_jobs(text, "k.yaml")
    return str(caught.value)


def named(written: Written) -> list[str]:
    return [": ".join(warning.split(": ")[:2]) for warning in written.warnings]


def test_a_pod_with_a_part_of_a_gpu_becomes_a_job() -> None:
    written = only(POD)
    assert written.job == {
        "name": "notebook",
        "labels": {"app": "notebook"},
        "command": ["jupyter", "lab", "--port", "8888", "$HOME", "$(NOPE)"],
        "image": "rocm/pytorch:latest",
        "container": {
            "entrypoint": [],
            "workdir": "/workspace",
            "scratch": [{"target": "/data"}],
        },
        "env": {"PORT": "8888"},
        "vendor": "amd",
        "gpus": 1,
        "gpu_share": 50,
        "isolation": "time_slice",
        "cpus": 0.5,
        "memory_bytes": 32 * GIB,
        "node_list": ["mi300-01"],
        "node_labels": {"disk": "nvme"},
        "retries": 0,
    }


def test_each_ignored_part_of_a_pod_is_a_warning_with_its_line() -> None:
    assert named(only(POD)) == [
        "k.yaml:5: metadata.namespace",
        "k.yaml:11: annotation kaiwo.ai/enable-analytics",
        "k.yaml:12: annotation prometheus.io/scrape",
        "k.yaml:27: spec.containers[0].env[1].valueFrom",
        "k.yaml:29: spec.containers[0].resources.limits.memory",
    ]


def test_a_kubernetes_job_keeps_its_retries_limits_and_node_selection() -> None:
    written = only(JOB)
    assert written.job == {
        "name": "train",
        "labels": {"app": "train"},
        "command": ["python", "train.py"],
        "vendor": "nvidia",
        "gpus": 8,
        "cpus": 64.0,
        "memory_bytes": 512 * GIB,
        "model": ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"],
        "node_labels": {"zone": "a"},
        "anti_affinity": {"app": "train"},
        "retries": 2,
        "array": "0-3%1",
        "time_limit_s": 3600,
        "grace_s": 60,
    }
    term = (
        "spec.template.spec.affinity.nodeAffinity."
        "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    )
    assert named(written) == [
        f"k.yaml:25: {term}.matchExpressions[2].zone NotIn",
        "k.yaml:30: spec.template.spec.tolerations",
    ]


@pytest.mark.parametrize("text", [POD, JOB, PLAIN])
def test_the_gateway_accepts_the_job_of_a_manifest(text: str) -> None:
    spec = submission(only(text).job, JobId("j1")).spec
    assert spec.command and (spec.gpus or spec.cpus_milli)


def test_a_plain_pod_becomes_a_job_without_gpus_and_without_a_warning() -> None:
    written = only(PLAIN)
    assert (written.job, written.warnings) == (
        {"name": "x", "command": ["a"], "gpus": 0, "cpus": 1.0, "retries": 0},
        (),
    )


@pytest.mark.parametrize(
    ("words", "array"),
    [
        ("completions: 100, parallelism: 4, completionMode: Indexed", "0-99%4"),
        ("completions: 3, parallelism: 3", "0-2"),
        ("completions: 1, parallelism: 1", None),
        ("parallelism: 3", None),
    ],
)
def test_completions_become_a_job_array(words: str, array: str | None) -> None:
    written = only(
        f"apiVersion: batch/v1\nkind: Job\nspec: {{{words}, template: {{spec: {{containers: "
        f"[{{command: [a]}}]}}}}}}\n"
    )
    assert written.job.get("array") == array
    assert named(written) == (["k.yaml:3: spec.parallelism"] if words == "parallelism: 3" else [])


def test_backoff_limit_per_index_overrides_backoff_limit() -> None:
    words = "backoffLimitPerIndex: 1, completions: 2"
    text = (
        f"apiVersion: batch/v1\nkind: Job\nspec: {{{words}, template: {{spec: {{containers: "
        f"[{{command: [a]}}]}}}}}}\n"
    )
    assert only(text).job["retries"] == 1
    with pytest.raises(Refused, match="completions' and parallelism must be at most 1000000"):
        only(text.replace("completions: 2", "completions: 1000001"))


@pytest.mark.parametrize(
    ("kind", "suspend", "held"),
    [("Job", "true", True), ("Job", "false", None), ("Pod", "true", None)],
)
def test_a_suspended_job_becomes_a_held_job(kind: str, suspend: str, held: bool | None) -> None:
    inner = "containers: [{command: [a]}]"
    spec = f"template: {{spec: {{{inner}}}}}" if kind == "Job" else inner
    written = only(f"apiVersion: v1\nkind: {kind}\nspec: {{suspend: {suspend}, {spec}}}\n")
    assert written.job.get("hold") is held
    assert named(written) == (["k.yaml:3: spec.suspend"] if kind == "Pod" else [])


def test_a_job_without_a_backoff_limit_has_the_default_of_kubernetes() -> None:
    text = (
        "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [{command: "
        "[a]}]}}}\n"
    )
    assert only(text).job["retries"] == 6


@pytest.mark.parametrize(
    ("limits", "job"),
    [
        ("{amd.com/gpu: 500m}", {"vendor": "amd", "gpus": 1, "gpu_share": 50}),
        ("{amd.com/gpu: 2000m}", {"vendor": "amd", "gpus": 2}),
        ("{nvidia.com/gpu: 0.25}", {"vendor": "nvidia", "gpus": 1, "gpu_share": 25}),
        ("{nvidia.com/mig-1g.10gb: 3}", {"vendor": "nvidia", "gpus": 3, "mig_profile": "1g.10gb"}),
        ("{gpu.intel.com/i915: 1}", {"vendor": "intel", "gpus": 1}),
    ],
)
def test_gpu_counts_are_whole_numbers_or_a_part_of_one(limits: str, job: dict[str, object]) -> None:
    assert limited(limits).job == {"name": "", "command": ["a"], "retries": 0, **job}


def test_kaiwo_memory_is_in_mebibytes_and_a_fraction_overrides_it() -> None:
    assert (
        limited("{amd.com/gpu: 1}", '{kaiwo.ai/gpu-memory: "4000"}').job["gpu_memory_bytes"]
        == 4000 << 20
    )
    written = limited("{}", '{kaiwo.ai/gpu-fraction: "0.5", kaiwo.ai/gpu-memory: "4000"}')
    assert (written.job["gpus"], written.job["gpu_share"], "gpu_memory_bytes" in written.job) == (
        1,
        50,
        False,
    )
    assert named(written) == ["k.yaml:3: annotation kaiwo.ai/gpu-memory"]


def test_a_resource_request_overrides_its_limit() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{command: [a], resources: {limits: {cpu: "
        "4}, requests: {cpu: 1500m}}}]}\n"
    )
    written = only(text)
    assert written.job["cpus"] == 1.5
    assert named(written) == ["k.yaml:3: spec.containers[0].resources.limits.cpu"]


def test_several_node_selector_terms_give_a_warning() -> None:
    must = (
        "requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: []}, "
        "{matchFields: []}]}"
    )
    assert (
        "alternatives are not supported"
        in only(PLAIN + f"  affinity: {{nodeAffinity: {{{must}}}}}\n").warnings[0]
    )


def test_a_pod_with_a_restart_policy_runs_once_with_a_warning() -> None:
    assert (
        only(PLAIN + "  restartPolicy: Always\n")
        .warnings[0]
        .startswith("k.yaml:7: spec.restartPolicy: Always is not honoured")
    )


def test_one_file_may_contain_manifests_and_job_files() -> None:
    assert [
        written.job["command"] for written in read_jobs(PLAIN + "---\ncommand: [b]\n", "k.yaml")
    ] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "k.yaml:1: kind 'Deployment' is not supported, only Pod and Job",
        ),
        (
            "apiVersion: v1\nkind: Pod\nspec: {containers: [{}, {}]}",
            "k.yaml:3: 2 containers: a job runs one program",
        ),
        (
            "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: x}]}",
            "k.yaml:3: the container has neither an image nor a 'command'",
        ),
        ("apiVersion: v1\nkind: Pod\nspec: [a]", "k.yaml:3: 'spec' must be a mapping, not a list"),
        (
            "apiVersion: v1\nkind: Pod\nspec: {containers: a}",
            "k.yaml:3: 'spec.containers' must be a list, not a string",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: [a]}",
            "k.yaml:3: 'metadata.name' must be a string, not a list",
        ),
        (
            PLAIN + "  activeDeadlineSeconds: soon",
            "k.yaml:7: 'spec.activeDeadlineSeconds' must be a whole number",
        ),
        (
            PLAIN + "    resources: {limits: {amd.com/gpu: 1500m}}",
            "k.yaml:7: amd.com/gpu: use whole GPUs, or 10m to 990m",
        ),
        (
            PLAIN + "    resources: {limits: {amd.com/gpu: 1, nvidia.com/gpu: 1}}",
            "k.yaml:7: a job can use only one kind of GPU",
        ),
        (
            PLAIN + "    resources: {limits: {cpu: much}}",
            "k.yaml:7: 'spec.containers[0].resources.limits.cpu' must be a quantity",
        ),
        (
            PLAIN + "  nodeName: a\n  nodeSelector: {kubernetes.io/hostname: b}",
            "k.yaml:8: this rule for 'kubernetes.io/hostname' excludes all values",
        ),
    ],
)
def test_an_error_in_a_manifest_names_its_line(text: str, expected: str) -> None:
    assert fault(text).startswith(expected)


@pytest.mark.parametrize(
    "annotation",
    [
        '{kaiwo.ai/gpu-fraction: "1.5"}',
        "{kaiwo.ai/gpu-fraction: half}",
        "{kaiwo.ai/gpu-memory: 4G}",
    ],
)
def test_an_invalid_fraction_of_a_gpu_is_refused(annotation: str) -> None:
    with pytest.raises(Refused, match=r"k\.yaml:3: kaiwo\.ai/gpu-"):
        limited("{}", annotation)


def test_annotations_ask_for_memory_pools() -> None:
    written = limited("{nvidia.com/gpu: 2}", "{muster/pool: 8Gi, muster/host-pool: 500M}")
    assert written.warnings == ()
    spec = submission(written.job, JobId("j1")).spec
    assert (spec.pool_bytes, spec.host_pool_bytes) == (8 * GIB, 500_000_000)
    assert "pool_bytes" not in limited("{nvidia.com/gpu: 2}").job


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("{muster/pool: much}", "annotation muster/pool must be a quantity such as 16Gi"),
        ("{muster/pool: 8GiB}", "annotation muster/pool must be a quantity such as 16Gi"),
        ('{muster/pool: "0"}', "annotation muster/pool: '0': a pool has at least 2097152 bytes"),
        ("{muster/host-pool: 500m}", "annotation muster/host-pool: '500m': a pool has at least"),
        ("{muster/host-pool: 9Pi}", "annotation muster/host-pool: '9Pi': a pool has at least"),
    ],
)
def test_an_invalid_pool_is_refused_with_its_line(annotation: str, expected: str) -> None:
    with pytest.raises(Refused) as caught:
        limited("{nvidia.com/gpu: 1}", annotation)
    assert str(caught.value).startswith(f"k.yaml:3: {expected}")


def test_an_unknown_annotation_of_muster_gives_a_warning() -> None:
    assert named(limited("{}", "{muster/pol: 8Gi}")) == ["k.yaml:3: annotation muster/pol"]
