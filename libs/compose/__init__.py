"""The setup of the docker compose cluster: keys, certificates, passwords and servers' files.

The `init` container of deploy/docker-compose.yml creates them at the first `docker compose up`;
later runs change nothing. `containers.py` lists the files of each container. There are no default
passwords, and no container gets another's key. The nats containers run `server.py`.
"""
