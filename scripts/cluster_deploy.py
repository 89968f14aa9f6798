"""Installs, upgrades and checks a cluster on several machines over ssh, with systemd units.

    scripts/cluster_deploy.py --init cluster.yaml                 # write an example, then edit it
    scripts/cluster_deploy.py --config cluster.yaml               # install the head and all nodes
    scripts/cluster_deploy.py --config cluster.yaml --nodes gpu-07,gpu-08
    scripts/cluster_deploy.py --config cluster.yaml --upgrade     # one machine after the other
    scripts/cluster_deploy.py --config cluster.yaml --status

The work is in `libs/deploy`. docs/howto/deploy.md describes it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from libs.deploy.__main__ import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
