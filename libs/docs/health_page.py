"""docs/health.md: what is done about a device's errors, with the catalogue's own rows."""

from libs.common.devices import error_catalogue as e
from libs.common.devices.error_catalogue import Row
from libs.common.devices.error_rows import catalogue
from libs.docs.markdown import block, code, page, prose, table

_SWITCH = "3,1,1,-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack"
PLAYED = f"""
echo '3,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus' > STATE/kernel-log
echo '3,1,1,-;NVRM: Xid (PCI:0000:01:00 GPU-I:01): 94, Contained memory error' > STATE/kernel-log
echo '{_SWITCH} timeout error' > STATE/kernel-log
echo 'nvidia 0000:02:00.0 xid 95 uncontained' > STATE/driver-events
echo 'simulated 0000:02:00.0 reading 91 temperature_c' > STATE/driver-events""".strip()
FOLLOWS = (
    "Drivers tell of errors by events, the kernel by its log (MUSTER_KERNEL_LOG; only lines "
    "of the kernel's own facility count, and "
    "only those that begin as the driver's own do: the kernel repeats strings of users in "
    "its lines, never at their "
    "beginning). What both tell of counts once, and a flood counts once as long as it lasts.",
    "An agent says GpuErrorSeen for each error, and GpuFaulted for a device that can take no "
    "work: the scheduler places nothing there, and "
    "an order that crossed it is refused. A job ends by the verdict, with the error as its "
    "detail; one that died of it before the agent "
    "heard of it is told from one that failed by itself. On a device that several share an "
    "application's error ends only the job whose "
    "process made it.",
    "A reset waits until nobody has the device. What can be known of it is saved first "
    "(`evidence-*.json`, the newest 100, in the agent's "
    "state directory), then it is reset and looked at; one that is no better needs its "
    "machine to be started again. What is wrong "
    "outlives the agent; after a start of the machine devices that answer are taken back. "
    "While more than half of a node's devices "
    "(MUSTER_HEALTH_BREAKER_PERCENT) came to need a repair within 5 minutes "
    "(MUSTER_HEALTH_BREAKER_S), and more than one, none is reset.",
    "An agent that starts compares what its machine has with what the drivers show. A "
    "machine has the devices that the agent before "
    "knew (`devices-had.json` in the state directory) and those that the PCI bus lists. A "
    "device that its driver does not show stays in "
    "the inventory, out of use as `lost` (NVIDIA: `xid 79`), and its jobs end; a device that "
    "only the bus knows is named by its node and "
    "PCI address. `muster nodes NODE`, `muster health`, `muster doctor` and `muster_gpu_up` "
    "show it. If the vendor's library cannot be "
    "opened at all, the devices are out of use as `no_driver` and no job ends: a library "
    "that does not match its driver says nothing "
    "about running jobs. A lost device comes back when its machine is started again. A "
    "device that you took out stays lost until you set MUSTER_GPUS_REMOVED to its UUID or "
    "PCI address and start the agent; a device that "
    "is bound to another kernel driver (vfio-pci), was exchanged, or has a card that is "
    "divided otherwise is forgotten. An agent "
    "that starts with an empty state directory knows no device that has left the PCI bus.",
    "Each call into a driver has a deadline by its kind: MUSTER_DRIVER_BEGIN_MS for the "
    "first call and the first on each device, "
    "MUSTER_DRIVER_ANSWER_MS for all others, MUSTER_DRIVER_RESET_S for a reset. A device "
    "that is silent once keeps its last sample, "
    "marked as stale, and the process that asks is started again. The device never counts as "
    "clean meanwhile. A device that is silent "
    "twice within 5 minutes without an answer in between is out of use until it answers. An "
    "agent that starts again in the same boot waits "
    "MUSTER_DRIVER_ANSWER_MS at most, because the leases of its jobs run.",
    "A device whose NVLink fabric is not up (NVSwitch systems: the fabric manager has not "
    "registered it, or failed to) is degraded as "
    "`fabric`: its node takes jobs with one GPU there and no job with several, and `muster "
    "why` says so. The fabric is read with each "
    "sample, so a job that is placed in the first moment after a start may be too early.",
    "An NVSwitch writes its errors into the kernel's log with a number and a severity "
    "(`nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 ...`). The agent "
    "records "
    "each one as `sxid NUMBER` for every GPU on the node's fabric, and `muster health "
    "--gpu-id` shows "
    "it. A non-fatal error changes nothing. After a fatal one the jobs with several GPUs of "
    "the node "
    "end and are tried elsewhere. The node then takes only jobs with one GPU there (`muster why` "
    "quotes the line) until its machine was started again, or until you have reset its GPUs and "
    "switches and say so by `muster gpu reset` for each GPU. Jobs with one GPU and jobs in MIG "
    "instances go on. A row of the catalogue names a number (`sxid 24007`) or a severity "
    "(`sxid fatal`, `sxid non-fatal`).",
    "On a GPU in MIG mode the driver names the instance in which an error happened "
    "(`NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, ...`). An error whose row reaches an "
    "`instance` ends "
    "the job in that instance, and jobs in the GPU's other instances go on. If the driver names no "
    "instance, or one that the agent does not know, the error counts for all jobs that have the "
    "device. If the driver asks for a reset at once, all of them end.",
    "Two readings of NVIDIA's driver take a device out of use for new jobs; jobs that run "
    "there go on. "
    "`sram_threshold`: uncorrectable errors of the SRAM passed the driver's own threshold. "
    "`uncorrected`: the count of uncorrected ECC errors rose (of every vendor that counts "
    "them). Their "
    "limits are part of the catalogue's rows (`most`, `window_s`). Errors of NVLinks are "
    "read for each "
    "link where the driver tells links apart: replays, recoveries and CRC errors up to Hopper, "
    "recoveries and those that failed on Blackwell. Older drivers give one sum for all links. The "
    "counters of single links and of the SRAM are read with every tenth sample.",
    "A device that is hotter than MUSTER_HEALTH_PAUSE_C takes no new work until it is cooler "
    "than MUSTER_HEALTH_RESUME_C, one whose driver "
    "does not answer until it does. A row remap that waits for a reset is given one when "
    "nobody has the device. What a "
    "device mends by itself is counted per device, and told of (GpuErrorSeen) once in "
    "MUSTER_HEALTH_CORRECTED_WINDOW_S when there is "
    "more of it: corrected errors of its memory (`corrected`, MUSTER_HEALTH_CORRECTED_MAX), "
    "errors of its direct links "
    "(`link_errors`) and packets that PCIe sent again (`pcie_replays`, "
    "MUSTER_HEALTH_LINK_ERRORS_MAX each), as far as the vendor "
    "counts them.",
    "MUSTER_HEALTH_HOT says by vendor what a device that is too hot is told meanwhile, of "
    "the most that it takes, in percent: "
    "`nvidia=power:60,*=clocks:50` (by default nothing). What an operator has set stays "
    "where it is stricter, and is put back when the "
    "device is cool. One that does not report what it takes is left alone.",
    "Before a job starts its devices are looked at (MUSTER_PREFLIGHT=0: not): does the "
    "driver answer, is it cooler than "
    "MUSTER_HEALTH_PAUSE_C, does neither a row remap nor a recovery action wait, is the "
    "memory free where nobody else is on the "
    "device. The last sample tells where it is not older than a second, or two rounds; else, "
    "and where it tells of something, the "
    "device is asked again. One that is not fit goes out of use by its own cause (`thermal`, "
    "`remap_pending`, `recovery_action`, "
    "`quarantined`), and comes back as from any such cause; the job is refused there, placed "
    "elsewhere, and no retry is used up. In "
    "the shadow nobody looks.",
    "MUSTER_BURN_IN names a command that tries a device which comes back from a reset or a "
    "quarantine, before anything is placed "
    "there: it has $MUSTER_GPUS, $MUSTER_GPU_PCI and the vendor's own variable, "
    "MUSTER_BURN_IN_MS of time, and the agent's user. "
    "Where it fails the device stays out of use (`reset_failed`, `burn_in_failed`) until its "
    "machine was started again.",
    "A job that says how long it may go without progress (`--hang-timeout`, `hang_timeout`; "
    "none by default) is ended as `hung` when one "
    "of its devices was at least half busy for so long and nothing else of it changed: its "
    "checkpoint's word, its output, what its "
    "processes read and wrote, which processes it has, the memory used on its devices. The "
    "time that its processes compute says nothing: "
    "one that waits for a device in vain spins. So give it longer than the job ever works in "
    "silence. What others do to a job is a sign "
    "too: a process of `muster exec` in it. One that shares its devices with another job is "
    "not judged meanwhile, for whose work it is "
    "cannot be told. First its evidence is saved on its node (`evidence-JOB.ATTEMPT.json`: "
    "its devices' sample, where in the kernel each "
    "thread waits), then it ends, its devices are reset when they are free, and GpuErrorSeen "
    "`no_progress` names it on each. The end "
    "counts as one of the job's own retries: most hangs are the program's, and one that "
    "always hangs must come to an end. A card that "
    "is the cause shows by the jobs that hung there and nowhere else. Where a device cannot "
    "be reset it is used on once it is proved free. "
    "The time is counted anew by each agent.",
    "Suspects: `muster health --gpu-id` names a GPU on which three different jobs had "
    "errors, if those jobs had none elsewhere. "
    "`muster describe` names a job that had errors on different GPUs. An error that takes "
    "the device itself (`reboot_node`, `replace`) "
    "never counts against a job; `muster nodes NODE` names a node of which three GPUs had "
    "such an error.",
    "MUSTER_HEALTH_SHADOW=1: errors are recorded with their verdicts, marked as shadow, and "
    "nothing follows, "
    "but that a job ends by its own `--hang-timeout`.",
)
MEANS = {
    e.IGNORE: "it is recorded; nothing follows of it",
    e.RESTART_JOB: "the jobs that have the device end, the device stays in use",
    e.DRAIN_THEN_RESET: (
        "nothing new is placed there; when the last job has ended, the device is reset"
    ),
    e.RESET: "the jobs that have the device end, then it is reset",
    e.REBOOT_NODE: "the jobs that have the device end, and it stays out of use "
    "until its machine was "
    "started again, "
    "or an operator had it reset (`muster gpu reset`) and it came out of that well",
    e.REPLACE: (
        "the jobs that have the device end, and it stays out of use until somebody has seen to it"
    ),
}


REACH = {
    e.DEVICE: "all jobs that have the device",
    e.INSTANCE: (
        "the jobs in the MIG instance that the driver names; without one, all jobs that have the "
        "device"
    ),
    e.FABRIC: (
        "the jobs with several GPUs of the node; the device then serves jobs with one GPU there"
    ),
    e.NEW_WORK: "no job that runs; the device takes no new jobs",
}
ROW = ("vendor", "error", "what it is", "verdict", "cause", "reach", "only of")


def health() -> str:
    ours, theirs = catalogue(), catalogue(e.PLATFORM_DESIGN)
    return page(
        "Health of devices",
        prose(e.__doc__),
        "## Verdicts",
        table(
            ("verdict", "what it means"),
            [(code(verdict), MEANS[verdict]) for verdict in e.VERDICTS],
        ),
        "An error whose cause is the application ends the job as its own failure. What "
        "hardware ends is tried again elsewhere, "
        "and uses up none of its retries.",
        "## Where errors are heard, and what follows",
        *FOLLOWS,
        "## On simulated devices",
        "Each node of `muster up` has two pipes in its state directory. The agent reads what "
        "you write there as events of its devices, "
        "as for real ones. One takes lines of the kernel's log in the kernel's own form, the "
        "other events of the driver (vendor, address, "
        "kind, number, words). An event of the kind `reading` sets what the device reports "
        "from then on (`link 3 replay`: the counter of "
        "one link):",
        block(PLAYED, "sh"),
        "## The catalogue",
        f"Edition {code(ours.edition)}. Rows are data "
        "(`libs/common/devices/error_catalogue.json`); "
        "of several that fit the first counts. "
        "The driver's recovery field and Xid 154 go before every row. The reach of an error:",
        table(("reach", "what it means"), [(code(reach), REACH[reach]) for reach in e.REACHES]),
        table(ROW, [_row(row) for row in ours.rows]),
        "## The other catalogue",
        f"MUSTER_HEALTH_CATALOGUE={e.PLATFORM_DESIGN} puts these rows before the others "
        "([decision 18](decisions/0018-whose-table-of-errors.md)):",
        table(ROW, [_row(row) for row in theirs.rows if row not in ours.rows]),
    )


def _row(row: Row) -> tuple[str, ...]:
    gates = [*row.products, *([f"drivers from {row.driver}"] if row.driver else [])]
    return (
        row.vendor or "any",
        ", ".join(row.errors),
        row.what,
        code(row.verdict) or "open",
        row.cause,
        row.reach,
        ", ".join(gates),
    )
