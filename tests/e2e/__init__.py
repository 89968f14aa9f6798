"""The black-box suite: what a user does with a cluster, through the command and the API, and with
kill -9.

The same tests run against `docker compose` (where an engine answers; `make e2e`) and against the
processes of `muster up` (`make test`).
"""
