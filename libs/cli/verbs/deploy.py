"""`muster deploy`."""

import click

from libs.cli.flags.modelflags import model_body, model_flags
from libs.cli.formats.uploading import with_upload
from libs.cli.gateway import ask
from libs.cli.models import wait_until_ready
from libs.cli.terminal.output import complain
from libs.client.profile import read_profile


@click.command(short_help="Serve a model: run replicas of a command that answers HTTP.")
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[-- COMMAND [ARGS]...]")
@model_flags
def command(name: str, words: tuple[str, ...], wait: bool, **values: object) -> int:
    """Serve a model: run replicas of a command that answers HTTP.

    Each replica is a job. Muster replaces {port} in the command by the replica's own port, which is
    also in the variable PORT, and {host} by the address of its node. In a value of --env, {key} is
    replaced by a secret key that only gateways and health probes send. A replica receives requests
    while its health path answers 2xx. If a replica dies, Muster starts another one.

    \b
    muster deploy chat --replicas 2 -- \\
        vllm serve Qwen/Qwen2.5-7B-Instruct --host {host} --port {port}
    muster deploy chat --env VLLM_API_KEY={key} --replicas 0..8 --target-ttft 500ms -- \\
        vllm serve Qwen/Qwen2.5-7B-Instruct --host {host} --port {port}
    muster deploy chat --image vllm/vllm-openai:v0.31 --start 10m -- \\
        --model Qwen/Qwen2.5-7B-Instruct --port {port}
    muster deploy large --gpus 4 --gpu-model 'H100|H200' --interconnect required \\
        --upload . -- ./serve.sh {port}
    muster deploy tiny --fraction 0.25 --wait -- python3 examples/model_server.py --port {port}

    A NAME such as Qwen/Qwen2.5-7B deploys Qwen2.5-7B with --served-name Qwen/Qwen2.5-7B, so it is
    also the name that vLLM and SGLang use without --served-model-name.
    """
    if not words and not values["image"]:
        raise click.UsageError("no command: give one after --, or an image that has one (--image)")
    profile = read_profile()
    if "/" in name:
        values["served_name"] = values["served_name"] or name
        name = name.rpartition("/")[2]
    model = with_upload(profile, model_body(words, profile.user, values))
    answer = ask(profile, "POST", "/v1/deployments", body={"name": name, **model})
    for warning in answer.get("warnings") or ():
        complain(f"warning: {warning}")
    if not any("{port}" in word for word in words):
        complain(
            "warning: the command does not contain {port}: each replica must listen on the port "
            "in its variable PORT"
        )
    print(name, flush=True)
    return wait_until_ready(profile, name) if wait else 0
