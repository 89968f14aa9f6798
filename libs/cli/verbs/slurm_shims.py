"""`muster slurm-shims`."""

from pathlib import Path

import click


@click.command(short_help="Write Slurm's commands (sbatch, squeue ...) for this cluster.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--force", is_flag=True, help="Overwrite files that this command did not write.")
def command(folder: Path, force: bool) -> None:
    """Write Slurm's commands (sbatch, squeue ...) for this cluster.

    The command writes sbatch, srun, salloc, squeue, scancel, sinfo, sacct and scontrol to DIR. They
    take Slurm's usual flags and print what Slurm prints. They refuse a flag that Muster does not
    support, and name what to use instead.

    \b
    muster slurm-shims ~/bin/slurm
    export PATH=~/bin/slurm:$PATH
    sbatch --gpus 2 train.sbatch && squeue --me
    """
    from libs.cli.slurm.shims import write

    for path in write(folder, force):
        print(path)
