"""What `docker compose up` needs before anything starts: keys, certificates, passwords and the
servers' files, made once.

Run once by the `init` container of deploy/docker-compose.yml, and again, changing nothing, at each
later `up`. Which container is given what is `containers.py`; nothing here has a default password,
and no container is given another's key. `server.py` is what the nats containers run.
"""
