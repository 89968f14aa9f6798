"""The hook that lets an agent read the Python stacks of a job.

An agent puts this folder first on PYTHONPATH of the jobs that it starts, so every Python
interpreter of a job runs `sitecustomize.py`, which registers faulthandler. The agent's side is
`services/node_agent/diagnosis/stacks.py`.
"""

from typing import Final

# The signal that makes a process write its stacks: a real-time signal that no known runtime uses.
SIGNAL: Final = 57
# The name of the memory file that a process writes to, as /proc/PID/fd shows it.
MEMORY_FILE: Final = "muster-stacks"
# The file in which a rank writes the exception that ends it.
ENDING_PREFIX: Final = "ended_rank_"
