"""The program of `muster model pull`: it copies a model's files from a hub to a folder of the node.

It runs as an ordinary job, with the standard library alone and as the job's user, and imports
nothing of `libs.common` and of `services`. The agent packs it into one file (`pulled/program.py`)
and reads the copies that it makes (`copies.py`). docs/howto/pull-a-model.md is for users.
"""
