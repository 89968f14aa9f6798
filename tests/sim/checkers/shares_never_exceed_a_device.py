"""Placements in the log never exceed a device or a host: shares, CPUs and memory."""

from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, JobPlaced, Unknown
from libs.common.model import WHOLE_GPU
from libs.common.state.cluster import Cluster
from tests.sim.checkers.checker import Checker


class SharesNeverExceedADevice(Checker):
    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        if not isinstance(fact, JobPlaced):
            return
        for member in fact.members:
            node = cluster.nodes[member.node_id]
            for hold in member.gpus:
                held = cluster.gpus[hold.uuid].held
                if held > WHOLE_GPU:
                    self.fail(f"{hold.uuid} is promised to {held} hundredths")
            cpus = sum(cpus for cpus, _ in node.held.values())
            memory = sum(memory for _, memory in node.held.values())
            if cpus > node.cpus_milli or memory > node.memory_bytes:
                host = f"{node.cpus_milli} CPUs in thousandths and {node.memory_bytes} bytes"
                self.fail(f"{node.node_id} has {host}, and {cpus} and {memory} are promised")
