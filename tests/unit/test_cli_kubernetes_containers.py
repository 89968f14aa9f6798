"""Images and volumes of Kubernetes manifests: the resulting containers, and refusals with lines."""

from typing import Any

import pytest

from libs.cli.formats.job_fields import Written
from libs.cli.formats.jobfile import read_jobs
from libs.common.container_spec import ContainerSpec, Mount, Scratch
from libs.common.errors import Refused
from libs.common.model import JobId
from services.api_gateway.intents.job_intents import submission

TRAINING = """\
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  restartPolicy: Never
  securityContext: {runAsUser: 1000, runAsGroup: 1001, fsGroup: 1}
  imagePullSecrets: [{name: regcred}]
  containers:
    - name: main
      image: registry.example/team/train:1.2
      imagePullPolicy: Always
      args: [--epochs, "3"]
      workingDir: /workspace
      securityContext: {runAsUser: 2000, privileged: true}
      resources: {limits: {nvidia.com/gpu: 1}}
      volumeMounts:
        - {name: sets, mountPath: /data/, subPath: imagenet, readOnly: true}
        - {name: out, mountPath: /out}
        - {name: shm, mountPath: /dev/shm}
        - {name: ram, mountPath: /ram}
        - {name: tmp, mountPath: /tmp}
        - {name: claim, mountPath: /claim}
  volumes:
    - {name: sets, hostPath: {path: /srv/sets/, type: Directory}}
    - {name: out, hostPath: {path: /srv/out, type: DirectoryOrCreate}}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
    - {name: ram, emptyDir: {medium: Memory, sizeLimit: 1Gi}}
    - {name: tmp, emptyDir: {sizeLimit: 5Gi}}
    - {name: claim, persistentVolumeClaim: {claimName: x}}
"""


def only(text: str) -> Written:
    (written,) = read_jobs(text, "k.yaml")
    return written


def pod(container: str, volumes: str = "[]") -> str:
    return (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n"
        f"  volumes: {volumes}\n  containers:\n  - {container}\n"
    )


def fault(text: str) -> str:
    with pytest.raises(Refused) as caught:
        read_jobs(text, "k.yaml")
    return str(caught.value)


def test_a_pod_with_an_image_runs_in_a_container_as_it_is() -> None:
    written = only(TRAINING)
    spec = submission(written.job, JobId("j")).spec
    assert (spec.image, spec.command) == ("registry.example/team/train:1.2", ("--epochs", "3"))
    assert spec.workdir == ""
    assert spec.container == ContainerSpec(
        user="2000:1001",
        workdir="/workspace",
        mounts=(Mount("/srv/sets/imagenet", "/data", True), Mount("/srv/out", "/out")),
        scratch=(Scratch("/ram", 1 << 30, True), Scratch("/tmp")),
        shm_bytes=16 << 30,
    )


def test_each_ignored_part_of_a_container_is_a_warning_with_its_line() -> None:
    assert [": ".join(each.split(": ")[:2]) for each in only(TRAINING).warnings] == [
        "k.yaml:6: spec.securityContext.fsGroup",
        "k.yaml:7: spec.imagePullSecrets",
        "k.yaml:11: spec.containers[0].imagePullPolicy",
        "k.yaml:14: spec.containers[0].securityContext.privileged",
        "k.yaml:22: spec.containers[0].volumeMounts[5].name",
        "k.yaml:25: spec.volumes[1].hostPath.type",
        "k.yaml:28: spec.volumes[4].emptyDir.sizeLimit",
        "k.yaml:29: spec.volumes[5].persistentVolumeClaim",
    ]


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ("{image: i}", {"command": [], "image": "i"}),
        ("{image: i, args: [a]}", {"command": ["a"], "image": "i"}),
        (
            "{image: i, command: [c], args: [a], imagePullPolicy: IfNotPresent}",
            {"command": ["c", "a"], "image": "i", "container": {"entrypoint": []}},
        ),
        ("{command: [c], workingDir: /w}", {"command": ["c"], "workdir": "/w"}),
        (
            "{image: i, securityContext: {runAsUser: 5}}",
            {"command": [], "image": "i", "container": {"user": "5"}},
        ),
        ("{image: i, securityContext: {runAsGroup: 5}}", {"command": [], "image": "i"}),
    ],
)
def test_command_and_arguments_replace_what_kubernetes_replaces(
    container: str, expected: dict[str, Any]
) -> None:
    written = only(pod(container))
    assert {**written.job, **expected} == written.job and not written.warnings
    assert written.job.get("container") == expected.get("container")
    submission(written.job, JobId("j"))


def test_shared_memory_without_a_size_is_the_container_s_own() -> None:
    text = pod(
        "{image: i, volumeMounts: [{name: v, mountPath: /dev/shm}]}",
        "[{name: v, emptyDir: {medium: Memory}}]",
    )
    assert "container" not in only(text).job


@pytest.mark.attack
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (pod("{}"), "k.yaml:7: the container has neither an image nor a 'command'"),
        (
            pod("{image: a}\n  - {image: b}\n  - {image: c}"),
            "k.yaml:8: 3 containers: a job runs one program",
        ),
        (
            pod("{image: a}", "\n  - {name: v, hostPath: {path: /}}"),
            "k.yaml:6: 'spec.volumes[0].hostPath.path' is the whole file system of the node",
        ),
        (
            pod("{image: a}", "[{name: v, hostPath: {path: /a, type: Socket}}]"),
            "k.yaml:5: 'spec.volumes[0].hostPath.type' Socket: a job can mount only files",
        ),
        (
            pod("{image: a, volumeMounts: [{name: w, mountPath: /x}]}"),
            "k.yaml:7: 'spec.containers[0].volumeMounts[0].name': the Pod has no volume 'w'",
        ),
        (
            pod(
                "{image: a, volumeMounts: [{name: v, mountPath: /x, subPath: y}]}",
                "[{name: v, emptyDir: {}}]",
            ),
            "k.yaml:7: 'spec.containers[0].volumeMounts[0].subPath': an emptyDir has nothing",
        ),
    ],
)
def test_what_no_job_gets_is_refused_with_its_line(text: str, expected: str) -> None:
    assert fault(text).startswith(expected)
