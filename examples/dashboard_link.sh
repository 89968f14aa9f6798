#!/bin/sh
# Print a link to a job's page on the dashboard, for a colleague's browser or a chat message. The
# first link signs this browser in, once; the second one needs a session.
#
#     examples/dashboard_link.sh JOB
set -eu
job=$(muster ps --all --output json | "${PYTHON:-python3}" -c '
import json, sys
print(next(each["id"] for each in json.load(sys.stdin) if sys.argv[1] in (each["id"], each["name"])))
' "$1")
link=$(muster dashboard)
echo "sign in, once, within a minute: $link"
echo "the job's page:                 ${link%%/#*}/jobs/$job"
