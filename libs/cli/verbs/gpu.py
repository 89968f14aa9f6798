"""`muster gpu`: what GPUs shall be told, and what became of it."""

import click

from libs.cli import controls


@click.group(short_help="Set power, clocks and modes of GPUs, or reset them.")
def command() -> None:
    """Set power, clocks and modes of GPUs, or reset them.

    What is set stays: it is put back after a reset, and after a restart of the node's agent or of its machine, until `default` takes it
    off. What a GPU or its driver does not have is said to be lacking. `muster health --gpu-id` shows what is set.

    \b
    muster gpu power 300 --node node-3
    muster gpu clocks 1200-1500 --gpu-id GPU-node-3-5
    muster gpu clocks default --gpu-id GPU-node-3-5
    """


@command.command()
@click.argument("watts")
@controls.devices
def power(watts: str, where: controls.Where) -> int:
    """Limit what GPUs draw, in WATTS; `default` is their own limit."""
    return controls.tell("power", watts, where)


@command.command()
@click.argument("mhz")
@controls.devices
def clocks(mhz: str, where: controls.Where) -> int:
    """Lock the clocks of GPUs, in MHZ: 1500, or 1200-1500; `default` lets them go."""
    return controls.tell("clocks", mhz, where)


@command.command()
@click.argument("mode", metavar="on|off")
@controls.devices
def persistence(mode: str, where: controls.Where) -> int:
    """Let the driver stay loaded while nobody uses GPUs."""
    return controls.tell("persistence", mode, where)


@command.command("compute-mode")
@click.argument("mode")
@controls.devices
def compute_mode(mode: str, where: controls.Where) -> int:
    """Say who may compute on GPUs: default, exclusive_process (one process) or prohibited (nobody)."""
    return controls.tell("compute-mode", mode, where)


@command.command()
@click.argument("mode", metavar="on|off|default")
@controls.devices
def ecc(mode: str, where: controls.Where) -> int:
    """Turn error correction of GPUs' memory on or off; most count it after a reset."""
    return controls.tell("ecc", mode, where)


@command.command()
@click.argument("mode", metavar="on|off")
@controls.devices
def mig(mode: str, where: controls.Where) -> int:
    """Turn MIG mode of NVIDIA's GPUs on or off.

    In MIG mode only instances can be used (`--mig 3g.40gb`); a GPU needs to be free for it, and is reset where its card asks for that.

    \b
    muster drain --gpu-id GPU-8f7e...
    muster gpu mig on --gpu-id GPU-8f7e... && muster online --gpu-id GPU-8f7e...
    """
    return controls.tell("mig", mode, where)


@command.command("compute-partition")
@click.argument("mode", metavar="SPX|DPX|TPX|QPX|CPX")
@controls.devices
def compute_partition(mode: str, where: controls.Where) -> int:
    """Divide the compute of AMD's GPUs: each part is a GPU of its own. All of a card needs to be free."""
    return controls.tell("compute-partition", mode, where)


@command.command("memory-partition")
@click.argument("mode", metavar="NPS1|NPS2|NPS4|NPS8")
@controls.devices
def memory_partition(mode: str, where: controls.Where) -> int:
    """Divide the memory of AMD's GPUs. The driver may ask for all of its GPUs to be free, and says so."""
    return controls.tell("memory-partition", mode, where)


@command.command()
@controls.devices
def reset(where: controls.Where) -> int:
    """Reset GPUs that nobody has.

    Refused while a job runs there. Of one that drains it is done when its last job has ended. What can be known of a GPU is saved first,
    on its node, and it takes work again when it was found well afterwards.

    \b
    muster drain --gpu-id GPU-node-3-5
    muster gpu reset --gpu-id GPU-node-3-5 --no-wait
    """
    return controls.tell("reset", "", where)
