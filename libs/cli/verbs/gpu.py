"""`muster gpu`: set power, clocks and modes of GPUs, and report the outcome."""

import click

from libs.cli import controls


@click.group(short_help="Set power, clocks and modes of GPUs, or reset them.")
def command() -> None:
    """Set power, clocks and modes of GPUs, or reset them.

    A value stays in force until you remove it with --default. The node's agent sets it again after
    a reset, a restart of the agent, or a reboot. If a GPU or its driver does not support a control,
    the outcome is "lacking". To see the values of a GPU, use muster health --gpu-id UUID.

    \b
    muster gpu power 300 --node node-3
    muster gpu clocks 1200-1500 --gpu-id GPU-node-3-5
    muster gpu clocks --default --gpu-id GPU-node-3-5
    """


@command.command()
@controls.value("WATTS")
@controls.devices
def power(value: str, where: controls.Where) -> int:
    """Set the power limit of GPUs, in WATTS."""
    return controls.tell("power", value, where)


@command.command()
@controls.value("MHZ")
@controls.devices
def clocks(value: str, where: controls.Where) -> int:
    """Lock the clocks of GPUs. MHZ is one value (1500) or a range (1200-1500)."""
    return controls.tell("clocks", value, where)


@command.command()
@controls.value("on|off")
@controls.devices
def persistence(value: str, where: controls.Where) -> int:
    """Turn persistence mode on or off. It keeps the driver loaded while GPUs are idle."""
    return controls.tell("persistence", value, where)


@command.command("compute-mode")
@controls.value("MODE")
@controls.devices
def compute_mode(value: str, where: controls.Where) -> int:
    """Set the compute mode of GPUs. MODE is exclusive_process (one process) or prohibited."""
    return controls.tell("compute-mode", value, where)


@command.command()
@controls.value("on|off")
@controls.devices
def ecc(value: str, where: controls.Where) -> int:
    """Turn memory error correction (ECC) on or off. Most GPUs apply it after a reset."""
    return controls.tell("ecc", value, where)


@command.command()
@controls.value("on|off")
@controls.devices
def mig(value: str, where: controls.Where) -> int:
    """Turn MIG mode of NVIDIA GPUs on or off.

    In MIG mode, jobs can use only instances (--mig 3g.40gb). The GPU must be free. The agent resets
    the GPU if the card requires it.

    \b
    muster drain --gpu-id GPU-8f7e...
    muster gpu mig on --gpu-id GPU-8f7e... && muster online --gpu-id GPU-8f7e...
    """
    return controls.tell("mig", value, where)


@command.command("compute-partition")
@controls.value("SPX|DPX|TPX|QPX|CPX")
@controls.devices
def compute_partition(value: str, where: controls.Where) -> int:
    """Partition the compute units of AMD GPUs. Each partition is a GPU of its own.

    The whole card must be free.
    """
    return controls.tell("compute-partition", value, where)


@command.command("memory-partition")
@controls.value("NPS1|NPS2|NPS4|NPS8")
@controls.devices
def memory_partition(value: str, where: controls.Where) -> int:
    """Partition the memory of AMD GPUs.

    Some drivers require that all their GPUs are free. The outcome then says so.
    """
    return controls.tell("memory-partition", value, where)


@command.command()
@controls.devices
def reset(where: controls.Where) -> int:
    """Reset idle GPUs.

    The command is refused while a job uses the GPU. A GPU that drains is reset when its last job
    has ended. Before the reset, the agent saves evidence on the node. The GPU takes jobs again
    after it passes a check.

    \b
    muster drain --gpu-id GPU-node-3-5
    muster gpu reset --gpu-id GPU-node-3-5 --no-wait
    """
    return controls.tell("reset", "", where)
