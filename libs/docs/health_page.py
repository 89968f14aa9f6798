"""The page docs/health.md: device errors and their consequences, with the catalogue's rows."""

from libs.common.devices import error_catalogue as e
from libs.common.devices.error_catalogue import Row
from libs.common.devices.error_rows import catalogue
from libs.docs.markdown import block, code, page, table

_SWITCH = "3,1,1,-;nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack"
PLAYED = f"""
echo '3,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus' > STATE/kernel-log
echo '3,1,1,-;NVRM: Xid (PCI:0000:01:00 GPU-I:01): 94, Contained memory error' > STATE/kernel-log
echo '{_SWITCH} timeout error' > STATE/kernel-log
echo 'nvidia 0000:02:00.0 xid 95 uncontained' > STATE/driver-events
echo 'simulated 0000:02:00.0 reading 91 temperature_c' > STATE/driver-events""".strip()
BEGINNING = (
    "See which GPUs are unhealthy, and why: `muster health`, `muster health --gpu-id UUID`. Each "
    "device error has a *verdict*: what Muster does about it. The verdict comes from the first of "
    "these that has one: the driver's recovery field, Xid 154, the row of the catalogue below, "
    "your own rows (MUSTER_HEALTH_SITE). An error without a row drains the device and resets it, "
    "and ends no job."
)
FOLLOWS = (
    "Drivers report errors as events, and the kernel writes them to its log "
    "(MUSTER_KERNEL_LOG). Only lines of the kernel's own facility count, and only those "
    "that begin as the driver's own do: the kernel repeats strings of users in its lines, "
    "but never at their beginning. An error that both report is recorded once. "
    "Repetitions of one error are recorded once while they continue.",
    "The agent records each error as GpuErrorSeen, and a device that can take no work as "
    "GpuFaulted. The scheduler places nothing there, and the agent refuses an order that "
    "the scheduler sent before it read the fact. The verdict says whether a job ends; the "
    "error is then its detail. A job that failed before the agent received the error is "
    "recognised too. On a shared device an application's error ends only the job whose process "
    "made it.",
    "A reset waits until no job has the device. The agent first saves evidence in its "
    "state directory (`evidence-*.json`, the newest 100), then resets the device and "
    "examines it. If the check fails, the device needs a restart of its machine. The agent "
    "keeps faults over its restart. After a restart of the machine, devices that answer "
    "take work again. A breaker stops resets while more than half of a node's devices "
    "(MUSTER_HEALTH_BREAKER_PERCENT), and more than one, came to need a repair within 5 "
    "minutes (MUSTER_HEALTH_BREAKER_S).",
    "An agent that starts compares the devices of its machine with those that the drivers "
    "show. A machine has the devices that the previous agent knew (`devices-had.json` in "
    "the state directory) and those on the PCI bus. A device that its driver does not "
    "show stays in the inventory, out of use as `lost` (NVIDIA: `xid 79`), and its jobs "
    "end. A device that only the bus knows is named by its node and PCI address. `muster "
    "nodes NODE`, `muster health`, `muster doctor` and `muster_gpu_up` show it. If the "
    "vendor's library cannot be opened at all, the devices are out of use as `no_driver` "
    "and no job ends: a library that does not match its driver says nothing about running "
    "jobs. A lost device comes back when its machine is restarted. A device that you took "
    "out stays lost until you set MUSTER_GPUS_REMOVED to its UUID or PCI address and "
    "start the agent. The agent forgets a device that is bound to another kernel driver "
    "(vfio-pci), was exchanged, or has a card that is divided differently. An agent with "
    "an empty state directory does not know devices that have left the PCI bus.",
    "Each call into a driver has a deadline: MUSTER_DRIVER_BEGIN_MS for the first call "
    "and the first on each device, MUSTER_DRIVER_ANSWER_MS for all others, "
    "MUSTER_DRIVER_RESET_S for a reset. A device that misses one deadline keeps its last "
    "sample, marked as stale, and the process that calls the driver is restarted. The "
    "device does not count as clean in the meantime. A device that misses two deadlines "
    "within 5 minutes without an answer in between is out of use until it answers. An "
    "agent that restarts in the same boot waits at most MUSTER_DRIVER_ANSWER_MS, because "
    "the leases of its jobs run.",
    "A vendor's driver is called for one device after the other. A device that waits for "
    "its turn is not counted as silent. The release check of its job waits as well. A device "
    "that does not answer can be reset: the agent then sends the reset without another call "
    "to the device. A driver that hangs as a whole takes all devices of its vendor out of use.",
    "A device whose NVLink fabric is not up (NVSwitch systems: the fabric manager has not "
    "registered it, or failed to) is degraded as `fabric`. Its node then takes jobs with "
    "one GPU there but none with several, and `muster why` says so. The fabric is read "
    "with each sample, so a job that is placed in the first moment after a start may be "
    "too early.",
    "An NVSwitch writes its errors into the kernel's log with a number and a severity "
    "(`nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 ...`). The "
    "agent records each one as `sxid NUMBER` for every GPU on the node's fabric, and "
    "`muster health --gpu-id` shows it. A non-fatal error changes nothing. After a fatal "
    "one the jobs with several GPUs of the node end and are tried elsewhere. The node "
    "then takes only jobs with one GPU there (`muster why` quotes the line), until its "
    "machine is restarted, or until you have reset its GPUs and switches and run `muster "
    "gpu reset` for each GPU. Jobs with one GPU and jobs in MIG instances go on. A row of "
    "the catalogue names a number (`sxid 24007`) or a severity (`sxid fatal`, `sxid "
    "non-fatal`).",
    "On a GPU in MIG mode the driver names the instance in which an error happened "
    "(`NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, ...`). An error whose row reaches an "
    "`instance` ends the job in that instance, and jobs in the GPU's other instances go "
    "on. If the driver names no instance, or one that the agent does not know, the error "
    "counts for all jobs that have the device. If the driver asks for an immediate reset, "
    "all of them end.",
    "Two readings of NVIDIA's driver take a device out of use for new jobs; running jobs "
    "go on. `sram_threshold`: uncorrectable SRAM errors exceeded the driver's own "
    "threshold. `uncorrected`: the count of uncorrected ECC errors rose (for every vendor "
    "that counts them). Their limits are part of the catalogue's rows (`most`, "
    "`window_s`). NVLink errors are read per link if the driver counts per link: replays, "
    "recoveries and CRC errors up to Hopper, recoveries and failed recoveries on "
    "Blackwell. Older drivers give one sum for all links. The counters of single links "
    "and of the SRAM are read with every tenth sample.",
    "A device that is hotter than MUSTER_HEALTH_PAUSE_C takes no new work until it is "
    "cooler than MUSTER_HEALTH_RESUME_C. A device whose driver does not answer takes none "
    "until it does. A row remap that waits for a reset gets one when no job has the "
    "device. Errors that a device corrects itself are counted per device. GpuErrorSeen "
    "records them once in MUSTER_HEALTH_CORRECTED_WINDOW_S when there are too many: "
    "corrected memory errors (`corrected`, MUSTER_HEALTH_CORRECTED_MAX), errors of direct "
    "links (`link_errors`) and packets that PCIe sent again (`pcie_replays`, "
    "MUSTER_HEALTH_LINK_ERRORS_MAX each), as far as the vendor counts them.",
    "MUSTER_HEALTH_HOT lowers a setting while a device is too hot, by vendor and in "
    "percent of its maximum: `nvidia=power:60,*=clocks:50` (none by default). An "
    "operator's setting stays if it is stricter, and is restored when the device is cool. "
    "A device that does not report its maximum is left alone.",
    "Before a job starts, the agent checks its devices (MUSTER_PREFLIGHT=0 turns this "
    "off): does the driver answer, is the device cooler than MUSTER_HEALTH_PAUSE_C, does "
    "neither a row remap nor a recovery action wait, is the memory free if no other job "
    "uses the device. A sample that is not older than a second, or two rounds, is enough; "
    "otherwise, or if it shows a fault, the agent asks the device again. A device that "
    "fails goes out of use for its own cause (`thermal`, `remap_pending`, "
    "`recovery_action`, `quarantined`) and comes back as after any such cause. The node "
    "refuses the job, which is placed elsewhere and uses up no retry. In shadow mode "
    "there is no check.",
    "MUSTER_BURN_IN names a command that tries a device after a reset or a quarantine, "
    "before it takes work. The command gets $MUSTER_GPUS, $MUSTER_GPU_PCI and the "
    "vendor's own variable, runs as the agent's user, and has MUSTER_BURN_IN_MS of time. "
    "If it fails, the device stays out of use (`reset_failed`, `burn_in_failed`) until "
    "its machine is restarted.",
    "A job can set a limit on the time without progress (`--hang-timeout`, "
    "`hang_timeout`; none by default). It ends as `hung` if one of its devices was at "
    "least half busy for that time and no sign of progress changed: its checkpoint, its "
    "output, the bytes that its processes read and wrote, its set of processes, the "
    "memory used on its devices. CPU time is no sign, because a process that waits for a "
    "device spins. So set the limit above the longest silent phase of the job. A process "
    "of `muster exec` in the job counts as progress. While a job shares its devices with "
    "another job it is not judged, because the agent cannot tell whose work keeps them "
    "busy. The agent first saves evidence on the node (`evidence-JOB.ATTEMPT.json`: the "
    "sample of its devices, and where in the kernel each thread waits). Then the job "
    "ends, its devices are reset when they are free, and GpuErrorSeen `no_progress` names "
    "it on each. The end uses up one of the job's retries: most hangs are the program's "
    "fault, and a job that always hangs must come to an end. A card that is the cause "
    "shows by jobs that hung there and nowhere else. A device that cannot be reset is "
    "used again once it is proved free. Each agent counts the time from its own start.",
    "Suspects: `muster health --gpu-id` names a GPU on which three different jobs had "
    "errors, if those jobs had none elsewhere. `muster describe` names a job that had "
    "errors on different GPUs. An error that takes the device itself (`reboot_node`, "
    "`replace`) never counts against a job; `muster nodes NODE` names a node of which "
    "three GPUs had such an error.",
    "MUSTER_HEALTH_SHADOW=1: errors are recorded with their verdicts, marked as shadow, "
    "and have no consequences. Jobs still end by their own `--hang-timeout`.",
)
MEANS = {
    e.IGNORE: "the error is recorded and has no consequences",
    e.RESTART_JOB: "the jobs that have the device end; the device stays in use",
    e.DRAIN_THEN_RESET: "the device takes no new work and is reset when its last job has ended",
    e.RESET: "the jobs that have the device end, then it is reset",
    e.REBOOT_NODE: (
        "the jobs that have the device end, and it stays out of use until its machine is "
        "restarted, or an operator resets it (`muster gpu reset`) and the check after the "
        "reset passes"
    ),
    e.REPLACE: (
        "the jobs that have the device end, and it stays out of use until an operator repairs or "
        "replaces it"
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
    e.NEW_WORK: "no running job; the device takes no new jobs",
}
ROW = ("vendor", "error", "description", "verdict", "cause", "reach", "only for")


def health() -> str:
    ours, theirs = catalogue(), catalogue(e.PLATFORM_DESIGN)
    return page(
        "Health of devices",
        BEGINNING,
        "## Verdicts",
        table(
            ("verdict", "meaning"),
            [(code(verdict), MEANS[verdict]) for verdict in e.VERDICTS],
        ),
        "An application error ends the job as its own failure. A job that a hardware error ended "
        "is tried again elsewhere and uses up no retry.",
        "## Sources of errors, and consequences",
        *FOLLOWS,
        "## On simulated devices",
        "Each node of `muster up` has two pipes in its state directory. The agent treats what you "
        "write there like events of real devices. One pipe takes lines of the kernel's log in the "
        "kernel's own form, the other events of the driver (vendor, address, kind, number, words). "
        "An event of the kind `reading` sets what the device reports from then on "
        "(`link 3 replay`: the counter of one link):",
        block(PLAYED, "sh"),
        "## The catalogue",
        f"Edition {code(ours.edition)}. Rows are data "
        "(`libs/common/devices/error_catalogue.json`); "
        "if several fit, the first one applies. "
        "The driver's recovery field and Xid 154 take precedence over every row. The reach of an "
        "error:",
        table(("reach", "meaning"), [(code(reach), REACH[reach]) for reach in e.REACHES]),
        table(ROW, [_row(row) for row in ours.rows]),
        "## The other catalogue",
        f"MUSTER_HEALTH_CATALOGUE={e.PLATFORM_DESIGN} puts these rows before the others "
        "([decision 18](decisions/0018-precedence-of-error-verdicts.md)):",
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
