"""Seeds that once found a bug, of Muster or of the simulation, each with the rule that must hold
now.

`make test` runs the last two of them, `make drills` the others. A seed's run changes when the plan
of faults or the workload does. The bug that a seed found is then kept as a planted bug
(`planted.py`).
"""

from typing import Final

SEEDS: Final[dict[int, str]] = {
    7: "a restarted scheduler replays its own commits instead of standing down for ever",
    8: "a node that was taken back is not lost again before it could hear of it",
    1361: "after a planned stop no clock on a wall says that the nodes' long leases are over",
    872: (
        "nothing begins on a node whose lease ran out while its agent was paused in the middle "
        "of a launch"
    ),
    1118: (
        "the time of facts goes on where a scheduler's wall clock is behind: a wait after a "
        "crash ends"
    ),
    1431: (
        "devices reserved for a job are not claimed before the reservation that it names has begun"
    ),
    732: "a time limit that is changed while its job runs changes what is expected of its nodes",
    587: (
        "who takes over goes by the schedulers' own time: another writer's clock that is ahead "
        "gives no early warning"
    ),
    3252: (
        "whose turn is over waits by the log's time for that, also where the scheduler itself "
        "has decided it"
    ),
    911: "a node that registers again accounts for no attempt of which the log has the end already",
    215: (
        "who follows a commit that ends an attempt and begins the next gives the first one's "
        "port and share back"
    ),
    353: "a run is not over while a node that is away may hold the long lease of a planned stop",
    2343: (
        "a node that came back is counted as silent from when the log has that, not from when it "
        "was decided"
    ),
    29: (
        "an agent registers once more when its incarnation was registered in its name: the "
        "devices of others return to them"
    ),
    930: "a replica whose end was forged is stopped when its model is undeployed",
    1256: "an allocation whose end was forged is stopped, although its time is not over",
    2865: "an agent refuses to set a mode of a device that a liar registered in its name",
    2582: "a quarantined device returns after the other job that shares it has ended",
    368: "a node that lied under its agent's next incarnation is removed all the same",
    71127: "a node that registered under a shorter lease profile may be lost by it after a change",
    73449: "a placement that crossed a node's registration may name its former incarnation",
    91005: "a hold of a killed gateway is stored after the job's release: it is released again",
}
