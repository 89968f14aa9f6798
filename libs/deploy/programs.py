"""Texts that run on the machines of a deployment: the unit of the head, and short programs.

The programs run with the Python of the installed version. Tests:
tests/integration/test_rollout.py and test_cluster_deploy.py.
"""

from typing import Final

UNIT: Final = """[Unit]
Description=Muster: the log and all services
Wants=network-online.target
After=network-online.target

[Service]
Environment=MUSTER_PROFILE={state}/profile.json
EnvironmentFile=-{state}/head.env
ExecStart={prefix}/current/bin/muster up --state {state}/cluster {flags}
KillMode=mixed
TimeoutStopSec=90
Restart=always
RestartSec=2
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""
# Prints the answer of the gateway on the head; `null` if a GET finds nothing. The profile has the
# key.
ASK: Final = """
import json, sys, urllib.error, urllib.request
key = json.load(open(sys.argv[1]))["key"]
body = sys.stdin.buffer.read() or None
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[2], body, headers)
try:
    answer = urllib.request.urlopen(request, timeout=20).read().decode()
except urllib.error.HTTPError as error:
    if error.code != 404 or body is not None:
        sys.exit(f"{error.code}: {error.read().decode()}")
    answer = "null"
sys.stdout.write(answer)
"""
# Joins with the invitation in STATE/invitation, which stays until the machine has joined.
JOIN: Final = """
import json, sys
from pathlib import Path
from libs.common.messages.admission import invitation
from libs.join import agent
state, gpus = Path(sys.argv[1]), int(sys.argv[2])
invited = json.loads((state / "invitation").read_bytes())
agent.join(invited["url"], invitation(invited["token"]), state, gpus)
(state / "invitation").unlink()
"""
# Prints the unit of the agent as this version writes it.
AGENT_UNIT: Final = """
import sys, tempfile
from pathlib import Path
from libs.join import agent
state, name = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    sys.stdout.write(agent.write_unit(Path(state), name, Path(folder)).read_text())
"""
# A version whose programs cannot even be imported is never switched to.
TRIED: Final = """
import libs.cli.main, libs.embedded.__main__, services.node_agent.__main__
import services.api_gateway.__main__, services.audit.__main__, services.quota.__main__
import services.scheduler.__main__
"""
