"""The meaning of every setting, for docs/settings.md, .env.example and `muster config`.

tests/test_docs.py checks that every field of `Settings` has a row, in the same order.
"""

from typing import Final

from libs.common.settings.node_help_texts import NODE_HELP

HELP: Final = {
    "nats": "NATS servers, separated by commas.",
    "nats_ca_file": (
        "Certificate of the authority that signed the NATS servers' certificates. If set, "
        "connections use TLS from the first byte. Empty: no TLS."
    ),
    "nkey_seed_file": "File with the nkey seed of this process (mode 0600).",
    "state": "Directory for the files of this process.",
    "instance": "Id of this process. Two running gateways must not share one.",
    "cluster_id": "Name of the cluster. It is recorded when the cluster starts for the first time.",
    "stream_replicas": (
        "Replicas of the log: 1 for `muster up`, 3 for a cluster with three NATS servers."
    ),
    "stream_bytes": (
        "Largest size of the log in bytes. At 80 % gateways refuse submissions, at higher levels "
        "other changes (docs/howto/trim.md)."
    ),
    "tenant_bytes_per_minute": (
        "Gateway: bytes per minute that the requests of one tenant may add to the log. 0: a "
        "fiftieth of MUSTER_STREAM_BYTES."
    ),
    "node_burst_bytes": (
        "Gateway: bytes that a node may write to the log beyond the facts of its jobs before its "
        "key is revoked. 0: no limit."
    ),
    "followers_per_tenant": (
        "Gateway: largest number of open streams of one tenant: output, events, watches and "
        "channels."
    ),
    "followers_per_job": "Gateway: largest number of open streams of one job.",
    "heartbeat_ms": (
        "Interval of the agents' heartbeats. Recorded when the cluster starts for the first "
        "time; ignored later."
    ),
    "lease_ms": (
        "Duration of a lease: how long a node may run jobs without hearing from the scheduler. "
        "Recorded when the cluster starts for the first time; ignored later."
    ),
    "margin_ms": (
        "Silence after the end of a lease before the scheduler declares the node lost. Recorded "
        "when the cluster starts for the first time; ignored later."
    ),
    "term_ms": (
        "How long one renewal of the scheduler's leadership is valid. Recorded when the cluster "
        "starts for the first time; ignored later."
    ),
    "stop_lease_ms": (
        "Lease that the scheduler grants to all nodes when it is stopped on purpose, so that "
        "jobs run on."
    ),
    "placement": (
        "Scheduler: default placement strategy: fragmentation, best_fit, first_fit, round_robin, "
        "worst_fit, least_loaded (also load_balanced) or topology (docs/howto/add-a-strategy.md)."
    ),
    "grow_after_s": (
        "Scheduler: run time after which a gang with fewer nodes than its maximum may be "
        "restarted with more."
    ),
    "state_hash_every": (
        "Commits between two hashes of the state, which members compare with the leader's. 0: no "
        "hashes. Give all services the same value."
    ),
    "hold_s": "Scheduler: time for which a node that was lost three times within an hour gets no "
    "new jobs; doubled with each further loss. 0: it gets some at once.",
    "fabric_every_s": (
        "Seconds between tests of the fabric that begin while no job waits. Only idle nodes are "
        "measured. 0: only when an operator asks."
    ),
    "fabric_pair_ms": "Milliseconds for which one pair of nodes may measure its link.",
    "fabric_bulk_kib": (
        "Size in KiB of the large messages of a fabric test; each direction sends at most 16."
    ),
    "fabric_drain": (
        "1: the scheduler drains suspect nodes, at most one node or 5 % of the nodes in an hour. "
        "0: operators do."
    ),
    "fabric_measured_racks": "1: measured racks count before those that nodes declare.",
    "fabric_exclude_s": (
        "Scheduler: seconds for which a gang avoids a node that its preflight found suspect; then "
        "the node may be measured again."
    ),
    "gateway_host": "Address that the gateway listens on.",
    "gateway_port": "Port that the gateway listens on.",
    "gateway_cors_origins": (
        "Origins whose pages in browsers may send requests, for example https://chat.example.org, "
        "separated by commas; * for all."
    ),
    "gateway_trusted_proxies": (
        "Addresses or networks of the proxies before the gateway, separated by commas, for example "
        "10.0.0.0/8. What they write into X-Forwarded-For counts as the client's address; that of "
        "others is ignored."
    ),
    "gateway_session_s": (
        "Time for which a browser that signed in stays signed in, in seconds. A session of an API "
        "key ends earlier if the key expires or is revoked."
    ),
    "gateway_past_bytes": (
        "Memory for states of the cluster at past moments, which the gateway keeps for further "
        "reads with `at`. The newest one is kept even if it is larger."
    ),
    "gateway_url": (
        "Address at which browsers reach the gateway, for example https://gpus.example.org. The "
        "identity provider sends them back to it. Empty: the address that the browser used."
    ),
    "oidc_issuer": (
        "Issuer of the OpenID Connect provider that users sign in at, for example "
        "https://id.example.org/realms/lab. Empty: users sign in with API keys only."
    ),
    "oidc_client_id": "Name of this cluster as a client of the provider.",
    "oidc_client_secret_file": (
        "File with the client's secret. Empty: a public client, which has none."
    ),
    "oidc_scopes": "Scopes that a sign-on asks for, separated by spaces.",
    "oidc_user_claim": (
        "Claim of the identity token that holds the user's name. Use one that users cannot change."
    ),
    "oidc_groups_claim": (
        "Claim that holds the user's groups. Dots lead into objects: realm_access.roles."
    ),
    "oidc_groups_file": (
        "File with the rule for each group: a YAML list of {group, tenant, role}. The first rule "
        "that fits a user counts; group * fits every user. It is read again when it changes."
    ),
    "oidc_answer_ms": "Time for the provider to answer a request of the gateway.",
    "notify_networks": (
        "Networks to which notifications may go although they are not public, separated by commas: "
        "10.1.0.0/16, 127.0.0.1/32. Only there a webhook may be http. Empty: public addresses only."
    ),
    "notify_mail_domains": (
        "Domains to which notifications of tenants may be mailed, separated by commas; * allows "
        "all. Empty: none. Operators' own notifications may go to every domain."
    ),
    "notify_ca_file": (
        "Certificates (PEM) of further authorities for webhooks and for the mail relay."
    ),
    "smtp_host": "Relay that takes the mails of notifications. Empty: no mails.",
    "smtp_port": "Port of MUSTER_SMTP_HOST.",
    "smtp_tls": (
        "starttls: the connection to the relay must become TLS before a mail is sent; tls: TLS "
        "from the first byte; off: no TLS, for a relay on this machine only."
    ),
    "smtp_from": "Sender of the mails.",
    "smtp_user": "User at the relay. Empty: no login.",
    "smtp_password_file": "File with the password of MUSTER_SMTP_USER (mode 0600).",
    "gateway_tls_host": (
        "Address on which the gateway also listens with TLS: for clients, and for machines that "
        "join. Empty: no TLS listener."
    ),
    "gateway_tls_port": "Port of the gateway's TLS listener.",
    "gateway_cert_file": (
        "Certificate (PEM, with its chain) that clients see at the TLS listener. It is read again "
        "when the file changes. Empty: that of the cluster's own authority."
    ),
    "gateway_key_file": "Private key of MUSTER_GATEWAY_CERT_FILE (PEM, without a password).",
    "gateway_grpc_host": (
        "Address on which the gateway also answers gRPC; with TLS if MUSTER_GATEWAY_CERT_FILE is "
        "set. Empty: no gRPC."
    ),
    "gateway_grpc_port": "Port of the gateway's gRPC listener.",
    "gateway_grpc_bytes": (
        "Largest number of bytes that all gRPC calls of a gateway keep at one time: messages that "
        "wait, and answers until they are sent. One tenant may have 4/5 of it."
    ),
    "join_url": (
        "Address that other machines use to join, if it differs from the TLS listener's: "
        "https://ADDRESS:PORT."
    ),
    "join_nats": (
        "Addresses at which other machines reach the NATS servers. Empty: the same as MUSTER_NATS."
    ),
    "tls_ca_file": "Certificate of the cluster's own authority. A machine that joins pins it.",
    "tls_cert_file": "Certificate of the gateway that machines see when they join.",
    "tls_key_file": "Private key of MUSTER_TLS_CERT_FILE (mode 0600).",
    "api_keys_file": (
        "File of accepted API keys, one SHA-256 digest in hex per line. Empty: accept none."
    ),
    "vault_key_file": (
        "File with the key that encrypts tenants' secrets and sessions (32 bytes in base64), the "
        "same for all gateways. Empty: no secrets, and no sign-in from browsers."
    ),
    "model_connect_ms": "Time for a replica of a model to accept a connection.",
    "model_answer_ms": (
        "Time for a replica to answer a request; for a stream, to send the first event."
    ),
    "model_idle_ms": "Longest pause between two events of a replica's stream.",
    "model_body_ms": ("Time for a client to send the body of a request, or 1 MiB of an upload."),
    "model_keepalive_ms": (
        "How long the gateway keeps an idle connection to a replica. Choose less than the "
        "replica's own limit."
    ),
    "model_attempts": (
        "Number of replicas tried for one request, as long as nothing was sent to the client."
    ),
    "model_headers_ms": (
        "Time for a replica to send the headers of a stream; then another replica is tried. The "
        "first event may take MUSTER_MODEL_ANSWER_MS."
    ),
    "model_adapter_ms": "Time for a replica to load a LoRA adapter, or to unload one.",
    "model_retry_percent": (
        "Part of a model's requests that may be sent to one more replica because the first one is "
        "slow (before it answers) or too busy (502, 503). 0: none."
    ),
    "model_requests_max": (
        "Largest number of open OpenAI requests in one gateway. One tenant may have at most four "
        "times as many open as are free."
    ),
    "model_bodies_bytes": (
        "Memory for the bodies of all open requests in one gateway, and for whole answers and "
        "unfinished events of models. One tenant may use at most four times what is free."
    ),
    "model_body_bytes": "Largest body of an OpenAI request.",
    "model_form_bytes": "Largest form of a request to a model; forms are not held in memory.",
    "model_forms_bytes": (
        "Bytes of forms that the gateway keeps on disk in all, until it has read which model each "
        "is for; half of it for one tenant. A temporary directory in memory counts as memory."
    ),
    "model_answer_bytes": "Largest answer of a model; streams are not limited.",
    "model_output_tokens": (
        "Value of `max_tokens` that counts against a token limit if the request does not set it."
    ),
    "model_suspect_ms": (
        "How long a replica that failed a request is avoided while other replicas are ready. "
        "Each further failure without an answer in between doubles it, up to a minute."
    ),
    "model_wait_ms": (
        "Longest time that a request waits in the gateway for a replica that has room; then the "
        "answer is 503."
    ),
    "model_waiting_tokens": (
        "Input tokens that may wait for one model in one gateway. Requests of low priority may "
        "fill half of it."
    ),
    "model_tenant_waiting_tokens": (
        "Input tokens of one tenant that may wait for one model in one gateway."
    ),
    "model_room_tokens": (
        "A replica gets no more requests while so many of their input tokens are unprocessed "
        "(five times as many if it holds the prompt in its cache). 0: no bound, so that requests "
        "wait in the model server instead."
    ),
    "model_room_requests": (
        "Largest number of requests that one gateway has open at one replica. 0: no bound."
    ),
    "model_prefix_bytes": (
        "Memory of one gateway for remembering, for each model, which replica was sent which "
        "prompts. All models together have eight times as much."
    ),
    "limits_answer_ms": (
        "Gateway: time for the quota service to grant a share of a tenant's requests or tokens "
        "per minute."
    ),
    "upload_bytes": (
        "Largest archive of a directory that a job brings with --upload. The command, the "
        "gateways and the agents each check it."
    ),
    "upload_files": "Largest number of files and directories in such an archive.",
    "upload_store_bytes": (
        "Size of the bucket that stores these archives. It applies when the bucket is created. "
        "One tenant's archives may use at most four times what is free."
    ),
    "upload_cache_bytes": (
        "Agent: bytes of archives that stay on a node for its next jobs and for other nodes. 0: "
        "each job gets its archive from a gateway."
    ),
    "access_flush_ms": (
        "Gateway: how long access records are collected before they are written. A gateway that "
        "is killed loses them."
    ),
    "audit_url": (
        "Database of the archive, as an SQLAlchemy URL. Empty: SQLite in the state directory."
    ),
    "audit_begin": (
        "First commit of an empty archive. Use a value above 1 only if the log was trimmed and "
        "its archive is lost for ever."
    ),
    "audit_stream_bytes": (
        "Size of the stream AUDIT, which publishes events to consumers. The oldest events go "
        "first. 0: publish nothing."
    ),
    "audit_key_file": (
        "File with the nkey seed that signs the heads of the audit chain; not the seed of the "
        "process itself. Empty: heads are not signed."
    ),
    "audit_head_every_s": (
        "Interval at which a new head of the audit chain is signed and published."
    ),
    "audit_head_commits": (
        "Number of commits after which a head is signed before the interval ends."
    ),
    "trimmer_seed_file": (
        "Audit: file with the nkey seed that may trim the log. Empty: the log is never trimmed."
    ),
    "trimmer_key_file": (
        "File with the trimmer's public nkey. A service uses the snapshot `base` only if this "
        "key signed it. Empty: never."
    ),
    "trim_keep_commits": (
        "Number of newest commits that stay in the log unless it is too full. With less than "
        "100000 a new gateway may know less history."
    ),
    "trim_keep_hours": (
        "Age at which commits leave the log for the archive. Younger commits leave only if the "
        "log is too full."
    ),
    "trim_full_percent": (
        "Fill level of the log, in percent of MUSTER_STREAM_BYTES, above which younger commits "
        "leave it too."
    ),
    "trim_every_s": "Interval at which the trimmer checks the log.",
    "node_id": "Name of this node, [a-z0-9-]{1,63}.",
    "node_address": "Address at which other nodes reach this one (MASTER_ADDR).",
    **NODE_HELP,
    "settle_ms": "Gateway: how long a request waits until the gateway has reached its `min_seq`.",
    "ask_ms": "Gateway: time for the scheduler or an agent to answer a question.",
    "ask_past_ms": (
        "Gateway, scheduler: time for questions that need a trial (why, whatif) or a replay of "
        "the log."
    ),
    "trace_lead_ms": (
        "Gateway: time from the order of a trace to its start. PyTorch's processes ask for orders "
        "every 5 s and need 2 s to prepare."
    ),
    "stdin_ms": "Gateway: time for an agent to accept input for a job.",
    "keepalive_ms": "Gateway: interval of keep-alive messages in open streams.",
    "wait_max_ms": "Gateway: largest timeout of a request that waits for a job.",
    "gateway_stop_ms": (
        "Gateway: how long open streams may go on after the gateway was told to stop."
    ),
    "gateway_head_ms": (
        "Gateway: time for a client to connect and send the request line and headers, to send "
        "the rest of a body after the answer, or to finish a WebSocket handshake."
    ),
    "gateway_unread_ms": (
        "Gateway: the connection of a client is closed, and its request ends, if it has read less "
        "than 64 KiB of its answer within this time although more waits for it."
    ),
    "ready_silence_ms": (
        "Gateway: not ready if it has received no message from the log for this long."
    ),
    "ready_lag_commits": "Gateway: not ready if it is this many commits behind the log.",
    "log_connect_ms": "All services: time for a NATS server to accept the first connection.",
    "log_append_ms": (
        "Quota, scheduler: the process exits if the log stores no commit for this long. An "
        "election takes 4 to 9 seconds. A gateway logs an error then, is not ready, and retries; "
        "it exits if the log stores commits of others for this long."
    ),
    "up_ready_ms": "muster up: time for the gateway to become ready before `muster up` reports it.",
    "up_stop_ms": "muster up: time for a service to stop before it is killed.",
}
