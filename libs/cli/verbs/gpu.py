"""`muster gpu`: what GPUs shall be told, and what became of it."""

import click

from libs.cli import controls


@click.group(short_help="Set power, clocks and modes of GPUs, or reset them.")
def command() -> None:
    """Set power, clocks and modes of GPUs, or reset them.

    What is set stays: it is put back after a reset, and after a restart of the node's agent or of
    its machine, until --default takes it off. What a GPU or its driver does not have is said to be
    lacking. `muster health --gpu-id` shows what is set.

    \b
    muster gpu power 300 --node node-3
    muster gpu clocks 1200-1500 --gpu-id GPU-node-3-5
    muster gpu clocks --default --gpu-id GPU-node-3-5
    """


@command.command()
@controls.value("WATTS")
@controls.devices
def power(value: str, where: controls.Where) -> int:
    """Limit what GPUs draw, in WATTS."""
    return controls.tell("power", value, where)


@command.command()
@controls.value("MHZ")
@controls.devices
def clocks(value: str, where: controls.Where) -> int:
    """Lock the clocks of GPUs, in MHZ: 1500, or 1200-1500."""
    return controls.tell("clocks", value, where)


@command.command()
@controls.value("on|off")
@controls.devices
def persistence(value: str, where: controls.Where) -> int:
    """Let the driver stay loaded while nobody uses GPUs."""
    return controls.tell("persistence", value, where)


@command.command("compute-mode")
@controls.value("MODE")
@controls.devices
def compute_mode(value: str, where: controls.Where) -> int:
    """Say who may compute on GPUs: exclusive_process (one process) or prohibited (nobody)."""
    return controls.tell("compute-mode", value, where)


@command.command()
@controls.value("on|off")
@controls.devices
def ecc(value: str, where: controls.Where) -> int:
    """Turn error correction of GPUs' memory on or off; most count it after a reset."""
    return controls.tell("ecc", value, where)


@command.command()
@controls.value("on|off")
@controls.devices
def mig(value: str, where: controls.Where) -> int:
    """Turn MIG mode of NVIDIA's GPUs on or off.

    In MIG mode only instances can be used (`--mig 3g.40gb`); a GPU needs to be free for it, and is
    reset where its card asks for that.

    \b
    muster drain --gpu-id GPU-8f7e...
    muster gpu mig on --gpu-id GPU-8f7e... && muster online --gpu-id GPU-8f7e...
    """
    return controls.tell("mig", value, where)


@command.command("compute-partition")
@controls.value("SPX|DPX|TPX|QPX|CPX")
@controls.devices
def compute_partition(value: str, where: controls.Where) -> int:
    """Divide the compute of AMD's GPUs: each part is a GPU of its own.

    All of a card needs to be free.
    """
    return controls.tell("compute-partition", value, where)


@command.command("memory-partition")
@controls.value("NPS1|NPS2|NPS4|NPS8")
@controls.devices
def memory_partition(value: str, where: controls.Where) -> int:
    """Divide the memory of AMD's GPUs.

    The driver may ask for all of its GPUs to be free, and says so.
    """
    return controls.tell("memory-partition", value, where)


@command.command()
@controls.devices
def reset(where: controls.Where) -> int:
    """Reset GPUs that nobody has.

    Refused while a job runs there. Of one that drains it is done when its last job has ended. What
    can be known of a GPU is saved first, on its node, and it takes work again when it was found
    well afterwards.

    \b
    muster drain --gpu-id GPU-node-3-5
    muster gpu reset --gpu-id GPU-node-3-5 --no-wait
    """
    return controls.tell("reset", "", where)
