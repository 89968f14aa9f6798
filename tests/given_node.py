"""An agent's core and its clock, for tests of what it decides: `Node().orders(start("j"))`."""

from typing import Any

from libs.common import facts as f
from libs.common.messages import Desired, Lease, Orders, StartOrder, StopOrder
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, JobSpec, NodeId
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import apply
from services.node_agent.core.decide import decide

NODE = NodeId("n")
GPU = GpuId("GPU-n-0")
S: int = 1_000_000_000
T = 1_000 * S
INCARNATION = 3
EPOCH = 7


def start(
    job: str = "j",
    seq: int = 10,
    incarnation: int = INCARNATION,
    attempt: int = 1,
    ignores_lease: bool = False,
) -> StartOrder:
    spec = JobSpec(command=("true",), on_control_loss="continue" if ignores_lease else "stop")
    return StartOrder(
        job_id=JobId(job),
        attempt=attempt,
        incarnation=incarnation,
        seq=seq,
        rank=0,
        gpus=(GpuHold(GPU),),
        spec=spec,
        tenant="default",
        user="u",
        peers=(),
        port=0,
    )


def stop(job: str = "j", seq: int = 11, grace_ms: int = 10_000, signal: int = 15) -> StopOrder:
    return StopOrder(
        job_id=JobId(job), attempt=1, seq=seq, reason="cancelled", signal=signal, grace_ms=grace_ms
    )


def ref(job: str = "j", attempt: int = 1) -> AttemptRef:
    return AttemptRef(JobId(job), attempt)


class Node:
    """A core and its clock. `did` gives what it asks for now."""

    def __init__(self, leased: bool = True, adopted: tuple[o.Adopted, ...] = ()) -> None:
        self.state = s.begin(NODE, INCARNATION, adopted)
        self.now_ns = T
        if leased:
            self.lease()
            assert self.did() == [a.ReplaceLease(T + 13 * S)]

    def see(self, *seen: o.Observation) -> list[a.Action]:
        for one in seen:
            apply(self.state, one, self.now_ns)
        return self.did()

    def did(self) -> list[a.Action]:
        return decide(self.state, self.now_ns)

    def later(self, ns: int) -> list[a.Action]:
        self.now_ns += ns
        return self.did()

    def orders(self, *orders: StartOrder | StopOrder, epoch: int = EPOCH) -> list[a.Action]:
        return self.see(o.OrdersReceived(Orders(epoch, orders)))

    def lease(self, **given: Any) -> None:
        fields = {
            "epoch": EPOCH,
            "verdict": "ok",
            "lease_ms": 13_000,
            "digest": s.local_digest(self.state),
            "seq": 5,
            **given,
        }
        sent_ns = fields.pop("sent_boot_ns", self.now_ns)
        incarnation = fields.pop("incarnation", INCARNATION)
        apply(
            self.state,
            o.LeaseReceived(
                Lease(sent_boot_ns=sent_ns, heartbeat_ms=1_000, **fields), incarnation, sent_ns
            ),
            self.now_ns,
        )

    def desired(
        self, *starts: StartOrder, stops: tuple[StopOrder, ...] = (), seq: int = 50, **given: int
    ) -> list[a.Action]:
        return self.see(
            o.DesiredReceived(
                Desired(
                    epoch=given.get("epoch", EPOCH),
                    incarnation=given.get("incarnation", INCARNATION),
                    seq=seq,
                    starts=starts,
                    stops=stops,
                )
            )
        )

    def running(self, job: str = "j", ignores_lease: bool = False) -> "Node":
        order = start(job, ignores_lease=ignores_lease)
        assert self.orders(order) == [a.StartJob(order)]
        (said,) = self.see(o.JobLaunched(f"{job}.1"), o.ProcessStarted(f"{job}.1", 77))
        assert said == a.Record((started(job),), (o.Mark(f"{job}.1", 1),))
        return self

    def exited(self, job: str = "j", exit_: o.Exit | None = None) -> "Node":
        end = exit_ or o.Exit(executed=True, exit_code=0)
        began_ns = self.state.attempts[f"{job}.1"].began_ns
        assert self.see(o.ProcessExited(f"{job}.1", end)) == [
            a.CheckRelease(
                ref=ref(job),
                gpus=(GPU,),
                processes_gone=end.clean,
                failed=end.exit_code != 0,
                began_ns=began_ns,
            )
        ]
        return self


def started(job: str = "j") -> f.JobStarted:
    return f.JobStarted(job_id=JobId(job), attempt=1, node_id=NODE, pid=77)


def finished(job: str = "j", **fields: Any) -> f.JobFinished:
    return f.JobFinished(job_id=JobId(job), attempt=1, node_id=NODE, **{"exit_code": 0, **fields})


def released(job: str = "j", **checks: str) -> f.JobReleased:
    return f.JobReleased(
        job_id=JobId(job), attempt=1, node_id=NODE, checks=checks or {"processes": "gone"}
    )


def refused(job: str = "j", reason: str = "cancelled") -> f.JobRefused:
    return f.JobRefused(job_id=JobId(job), attempt=1, node_id=NODE, reason=reason)


def clean(job: str = "j") -> o.ReleaseChecked:
    return o.ReleaseChecked(f"{job}.1", {"processes": "gone"}, True)


def over(*facts: Any, job: str = "j") -> a.Record:
    return a.Record(facts, (o.Mark(f"{job}.1", 3),))


# Starting.
