"""`why MODEL`: what a model waits for, from the state alone.

Pure. If replicas wait for devices, the answer is the explanation of the first one, so the two never
differ.
"""

from datetime import UTC, datetime

from libs.common.life import job_life
from libs.common.state import model_crashes, model_view
from libs.common.state.cluster import Model, is_tenant_removed
from services.scheduler.explain.asker import WhyAsk as WhyAsk
from services.scheduler.explain.explain import Answer, explain, no_answer
from services.scheduler.explain.trial import RunOnCopy, copied
from services.scheduler.state.state import State


def explain_model(state: State, name: str, run_on_copy: RunOnCopy = copied) -> Answer:
    """Return the answer of `explain`, with `model` in place of `job_id`. Changes the state as
    `explain` does.
    """
    model = state.cluster.models.get(name)
    if model is None:
        return _answer(
            state, name, "unknown", f"no model {name} is known as of {state.cluster.seq}"
        )
    word = model_view.state_of(state.cluster, model)
    if is_tenant_removed(state.cluster, model.tenant):
        text = f"it is not deployed: its tenant {model.tenant} was removed{_not_ended(model)}"
        return _answer(state, name, word, text)
    queued = next(
        (
            job
            for job in model_view.replicas(state.cluster, model)
            if job.state == job_life.QUEUED and job.cancel is None
        ),
        None,
    )
    if word == model_view.CRASH_LOOPING:
        return _answer(state, name, word, _crash(state, model)) | {
            "remedy": _after_crash(state, model)
        }
    if queued is not None:
        proof = explain(state, queued.job_id, run_on_copy)
        waits = f"replica {queued.job_id} waits: {proof['answer']}"
        return _answer(state, name, word=word, text=waits, proof=proof)
    return _answer(state, name, word, _explain_unready(state, model, word))


def _crash(state: State, model: Model) -> str:
    until = datetime.fromtimestamp(model_crashes.backoff_until_ns(model) // 1_000_000_000, UTC)
    last = model_crashes.last_crash(state.cluster, model)
    return (
        f"its replicas crash: {model.crashes} times so far, the last: {last}; the next one begins "
        f"at {until:%H:%M:%S} UTC"
    )


def _after_crash(state: State, model: Model) -> str:
    if model_crashes.last_crash(state.cluster, model) != model.last_crash:
        return f"correct the command: muster redeploy {model.name} -- COMMAND"
    return f"read its output: muster logs {model_crashes.crashed_replica(model)}"


def _law(model: Model) -> str:
    """Return why the scheduler wants this number of replicas; empty if the user set it."""
    targets = model.spec.scaling
    if targets is None:
        return ""
    bounds = f" (the scheduler keeps {targets.replicas_min} to {targets.replicas_max}"
    if model.scaled_generation != model.generation:
        return f"{bounds}, and has not changed their number yet)"
    return f"{bounds}; its last change: {model.law})"


def _explain_unready(state: State, model: Model, word: str) -> str:
    ready = model_view.ready_count(state.cluster, model)
    count = f"{ready} of {model.wanted} replicas are ready{_law(model)}"
    if word == model_view.UNREADY:
        busy = model_view.counts(state.cluster, model, state.wall_ns)
        return (
            f"{count}; {busy}: requests go to them where none is ready; a busy one needs a "
            "longer --health-timeout"
        )
    if word == model_view.STARTING:
        return (
            f"{count}; the others have not answered {model.spec.health_path} yet (at most "
            f"{model.spec.startup_timeout_s} s)"
        )
    if word == model_view.REDEPLOYING:
        return f"{count}; generation {model.generation} takes over one by one"
    if word in (model_view.STOPPING, model_view.UNDEPLOYED):
        return f"it is not deployed{_not_ended(model)}"
    return count


def _not_ended(model: Model) -> str:
    return f"; {len(model.jobs)} replicas have not ended yet" if model.jobs else ""


def _answer(state: State, name: str, word: str, text: str, proof: Answer | None = None) -> Answer:
    shown = proof or no_answer("", word, text, state.cluster.seq)
    return (
        {"model": name}
        | {field: value for field, value in shown.items() if field != "job_id"}
        | {"state": word, "answer": text}
    )
