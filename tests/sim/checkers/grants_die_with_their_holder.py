"""Memory that can be revoked is free when its holder has ended, and all memory of an attempt when
the node has released it. At the end of a run nothing is left.

The checker leaves out nodes that lie: their keys may report that a job is over.
"""

from libs.common.change import IGNORED, Change, Stamp
from libs.common.facts import AnyFact, Commit, JobReleased, Unknown
from libs.common.model import attempt_key
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker


class GrantsDieWithTheirHolder(Checker):
    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        self._check_dead()
        if not isinstance(fact, JobReleased) or change is IGNORED:
            return
        machine = self.world.machines.get(fact.node_id)
        if machine is None or fact.node_id in self.world.lying:
            return
        key = attempt_key(fact.job_id, fact.attempt)
        for broker in machine.brokers:
            left = [size for owner, _, size in broker.memory.values() if owner == key]
            if left:
                self.fail(f"{key} has {sum(left)} bytes after its release")

    def _check_dead(self) -> None:
        for machine in self.world.machines.values():
            for broker in machine.brokers:
                for key, size in broker.left_by_dead.items():
                    self.fail(f"{size} bytes of {machine.node_id} are left of {key}, which ended")

    def finished(self) -> None:
        for machine in self.world.machines.values():
            if machine.node_id in self.world.lying:
                continue
            for broker in machine.brokers:
                for key, device, size in broker.memory.values():
                    if key not in broker.holders:
                        where = f"device {device} of {machine.node_id}"
                        self.fail(f"{size} bytes of {where} are left of {key}")
