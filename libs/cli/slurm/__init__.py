"""Slurm's commands on Muster: sbatch, srun, salloc, squeue, scancel, sinfo, sacct and scontrol.

`muster slurm-shims DIR` writes one small program per command (`shims.py`); each calls `__main__.py`
here. Parsing and formatting is pure: `options.py`, `columns.py`, `states.py`, `reasons.py`,
`ids.py`, `node_columns.py`, `output_files.py`. The programs send the requests. For users:
docs/howto/come-from-slurm.md. Tests: tests/unit/test_slurm_*.py and
tests/integration/test_slurm_*.py.
"""
