"""Every timeout is a key: a time that an operator may have to choose is a setting
(libs/common/settings/settings.py).

What is left is named here.

A number that stands in a call (`asyncio.timeout(5)`, `timeout=5`) is never right: it has no name. A
constant of time (`..._S`, `_MS`, `_NS`) stays one for a reason of the list, else it becomes a
setting or is made of one.
"""

import ast
from collections.abc import Iterator
from typing import Final

from tests.tidy import name, nodes, sources, tree

UNITS: Final = ("_S", "_MS", "_NS")
SETTINGS: Final = "libs/common/settings/settings.py"

# Reason -> constants, by the file's last name.
STAY: Final[dict[str, str]] = {
    "a unit, a calendar's length, a bucket of a histogram": """
        ordering.HOUR_NS order_intents.YEAR_S durations.UNITS_S ending.NS_PER_S
        job_intents.DAY_S job_intents.YEAR_S model.GPU_HOUR_SHARE_MS poll_loop.NS_PER_MS
        lease_watchdog.NS_PER_MS flapping.SECOND_NS
        rates.WINDOW_NS
        reading.AT_NS requests.NS_PER_S
        admission.SECOND_NS autoscaling.SECOND_NS fairness.SECOND_NS loads.SECOND_NS routing.MS_NS
        diagnosis.silence.SECOND_NS
        openai.batching.MS_NS hedging.MS_NS retry_budget.SECOND_NS wake_time.SECOND_NS
        demand.MS_NS demand.US_NS latencies.SECOND_NS latencies.US_NS
        allowance.MINUTE_NS allowance.SECOND_NS node_budget.SECOND_NS retention.SECOND_NS
        node_budget.BYTES_PER_S
        ordering.SECOND_NS devices.SECOND_NS hangs.SECOND_NS counters.SECOND_NS telemetry.BUCKETS_S
        times._NS trimmer.HOUR_NS links.rates.SECOND_NS links.serving.SECOND_NS openai.usage.MS_NS
        telemetry.SHARE_MS cluster_rows.SHARE_MS job_counters.WAIT_BUCKETS_S
        capture.MS_NS instructions.MS_NS job_traces.MS_NS observing.TICK_NS""",
    "what every fold must hold alike, or all schedulers decide alike": """
        ordering.HALF_LIFE_MS model_fold.STEADY_NS model_crashes.BACKOFF_MAX_S
        former_models.FORMER_NS former_models.FORMER_STAY_NS
        key_fold.EXPIRED_STAY_NS key_fold.EXPIRED_STAY_MIN_NS key_fold.SWEEP_NS
        lock_turns.MARGIN_NS""",
    "a program's own: an argument of the Python client chooses it, or it is a pace within one": """
        client.timing.ANSWER_S client.timing.RETRY_S client.timing.CONNECT_S client.timing.IDLE_S
        client.timing.POLL_S client.timing.SEND_S client.timing.LOOK_S client.timing.AGAIN_FIRST_S
        client.timing.SILENCE_S client.timing.POLL_BUSY_S client.timing.POLL_MIN_S
        client.timing.PROGRESS_S client.timing.AGAIN_MAX_S
        client.retries.PAUSE_FIRST_S client.retries.PAUSE_MAX_S
        cluster_verify.ANSWER_S following.locked.STEP_S following.locked.PATIENT_S
        following.locked.KILL_S following.locked.KILL_PAUSE_S locks.NS_PER_S
        following.running.OTHERS_S slurm.requests.WHY_S slurm.times.UNITS_S
        completion_names.ENDS_S""",
    "the default or the bound of a field of a request, which the asker chooses": """
        trace_intents.DURATION_MAX_S
        prune_intents.YOUNG_S identity_intents.EXPIRES_MAX_S secrets.vault.ABANDONED_NS
        identity_intents.GRACE_MAX_S
        identity_intents.GRACE_S
        membership_intents.VALID_MAX_S membership_intents.VALID_S requests.DEFAULT_GRACE_S
        requests.MAX_GRACE_S
        allocation_intents.EXPIRES_S lock_intents.TTL_S lock_intents.WAIT_MAX_S
        lock_intents.MS_IN_S lock_intents.RETRY_AFTER_S http.locks.WAIT_ONCE_S http.locks.DECISION_S
        http.locks.RETRY_AFTER_S
        access.sessions.LINK_S once_nats.KEPT_S sign_on.SIGN_ON_S identity_token.LEEWAY_S
        http.sign_on.INTERVAL_S http.sign_on.INTERVAL_MAX_S verbs.login.SLOWER_S""",
    (
        "a part of the lease's protocol: both ends count on it, and margins of MUSTER_LEASE_MS "
        "are made of it"
    ): """
        writer.AHEAD_MAX_NS job_fold.SPAN_MORE_MS
        clock.APART_MAX_S ending.KILL_BEFORE_NS ending.MAX_SLEEP_NS lease.NOTICE_NS
        job_directories.OVERRULE_NS lease_watchdog.KILL_BEFORE_MS lease_watchdog.FENCE_AFTER_MS
        lease_watchdog.FROZEN_NS lease_watchdog.LIVED_NS lease_watchdog.REPORT_NS
        lease_watchdog.ARMED_STEADY_NS lease_watchdog.LOOK_S lease_watchdog.LOOK_FIRST_S
        lease_watchdog.AGAIN_FIRST_S lease_watchdog.AGAIN_MAX_S lease_watchdog.PRESENT_S
        lease_watchdog.CLOSE_S setting_checks.FENCE_MAX_S flapping.WINDOW_NS
        leases.PAUSE_MAX_MS core.decide.LEASE_SLACK_NS timing.NOTICE_MS actions.NOTICE_NS
        scheduler.service.COMMIT_FAREWELL_S
        scheduler.service.SILENCE_CHECK_NS
        drains.FORGOTTEN_NS drains.LISTEN_NS connection_nats.PING_S
        connection_nats.LEAVES_SILENT_SERVER_S feed_nats.LEAVES_S feed_nats.SHORT_S
        feed_nats.ASKS_LEADER_S feed_nats.ASKS_AGAIN_S
        reconnecting.CLOSE_S
        reconnecting.PAUSE_S second_connection.LOOK_S""",
    (
        "the log's own protocol: one try, repeated until MUSTER_LOG_APPEND_MS or "
        "MUSTER_LOG_CONNECT_MS"
    ): """
        agreement.questions.ASK_S
        archive.ANSWER_S desired.PAGE_TIMEOUT_S gateways.ASK_S http.membership.ADMIT_S
        log.SETTLE_PAUSE_S log_jetstream.APPEND_TIMEOUT_S agents.log_servers.ASK_S
        agents.log_servers.REPLACE_S agents.log_servers.REPLICAS_S
        server_answers.PEER_S embedded.replicas.ANSWER_S
        connection_nats.ASK_TIMEOUT_S connection_nats.CONNECT_TIMEOUT_S
        log_jetstream.DEDUPE_WINDOW_S
        feed_nats.IDLE_S
        log_jetstream.LAST_PAUSE_S log_jetstream.PURGE_TIMEOUT_S feed_nats.SILENCE_S
        objects_nats.ASK_TIMEOUT_S once_nats.ASK_TIMEOUT_S
        peers.FETCH_TIMEOUT_S placed.PLACED_WAIT_S stream_nats.ASK_TIMEOUT_S
        stream_nats.DEDUPE_WINDOW_S trimmer.POSITION_S
        node_budget.REPEAT_NS uploads_nats.ASK_TIMEOUT_S uploads_nats.OVERTAKEN_S vitals.ASK_S
        vitals.FRESH_S
        writer.APPEND_BUDGET_S
        writer.RETRY_FIRST_S writer.RETRY_MAX_S""",
    "a supervisor, its zygote and its job on one machine: the end is sure whatever they are": """
        broker.CONTROL_S broker.ORPHAN_S keeper.DEATH_S keeper.RELEASE_S keeper.RESPAWN_S
        gms.server.CONTROL_S sibling.CONNECT_AGAIN_S sibling.RESPAWN_S sibling.DEATH_S
        resident_weights.ANSWER_S gms.engines.HANDSHAKE_NS gms.engines.MEMORY_AGAIN_NS
        gms.engines.MEMORY_NS gms.server.ALONE_NS gms.server.LOOK_NS weight_servers.OPEN_S
        keeper.CONNECT_AGAIN_S keeper.DEVICE_S keeper.DRIVER_CALL_S control_link.PING_S
        control_link.FIND_AGAIN_S control_link.WARN_AGAIN_S keeper.DEVICE_AGAIN_S
        control_link.ANSWER_S
        channels.CONNECT_S control_client.EXEC_TIMEOUT_S control_client.SIGNAL_TIMEOUT_S
        execs.HANGUP_GRACE_NS
        exec_inside.END_WAIT_S exec_inside.ENTRY_LOOK_S exec_inside.ENTRY_WAIT_S
        node_agent.channels.channel.WRITE_WAIT_S answers.STDIN_WAIT_S answers.UNKNOWN_WAIT_MS
        child.EXEC_WAIT_MS ending.GIVE_UP_NS
        ending.KILL_AGAIN_NS ending.SWEEP_GRACE_NS cgroups.LEAVE_AGAIN_S lost.SWEEP_AGAIN_S
        lost.SWEEP_S environments.READ_S attempt_facts.FINISHED_ALONE_NS attempt_facts.UNCHECKED_NS
        operator_command.SWEEP_AGAIN_S
        core.decide.KILL_AGAIN_NS core.decide.KILL_SLACK_NS
        device_work.CHECK_SLACK_S node_agent.service.DRAIN_LOOK_S
        node_agent.service.DRAIN_S engine.ASK_S engine.WANTED_LOOK_S daemons.LOOK_S daemons.KILL_S
        engine.REMOVE_S images.LOOK_S containers.ORPHANS_AGAIN_S
        daemon.ASK_S daemon.SHELL_S
        daemons.READY_AGAIN_S daemons.GONE_FIRST_S daemons.GONE_MAX_S pool.QUIET_NS
        apply.HIT_GRACE_MS apply.UNWANTED_GRACE_MS
        ending.SHUTDOWN_GRACE_NS telling.TELL_WAIT_S control_client.CONNECT_AGAIN_S
        denial.ANSWER_S directories.stops.AGAIN_S kept_directories.LOAD_AGAIN_S
        telling.START_ALONE_NS
        supervisor_client.MISSED_EVENTS_EVERY_S
        element_journal.MARK_NS supervisor.elements.FIRST_GUESS_NS core.batch.ELEMENTS_EVERY_NS
        element_runs.BESIDE_S element_runs.BESIDE_EACH_S
        supervisor_client.STATUS_TIMEOUT_S supervisor_client.STOP_TIMEOUT_S vendor_process.DEATH_S
        operator_command.DEATH_S operator_command.RENUMBERED_S renumbering.AGAIN_S
        zygote.ORPHAN_SWEEP_S zygote_link.EXIT_WAIT_S
        zygote_link.RESPAWN_FIRST_S zygote_link.RESPAWN_MAX_S""",
    "a trace: the pace of PyTorch's profiler, and the bounds of one capture on a node": """
        chrome_events.LEAD_IN_NS
        capture.LOOK_S capture.WRITE_S capture.FINISH_S capture.ALIGN_S capture.LATE_S
        doors.PAUSE_S removals.GATHER_S building.BUILD_S doors.SILENCE_NS instructions.WARM_UP_S""",
    "the bounds of one probe of the fabric: beyond MUSTER_FABRIC_PAIR_MS both ends must agree": """
        allowance.SAVED_NS exchange.QUICK_S prober.MEET_S prober.GRACE_S
        decide.fabric.ROUND_MORE_NS fabric_findings.KNOWN_NS decide.fabric.HOUR_NS
        fabric_rules.PREFLIGHT_NS fabric_rules.PREFLIGHT_FRESH_NS""",
    "what a waiting job is promised while it lends its nodes (docs/queues.md)": """
        lending.LENT_MIN_NS lending.LENT_GRACE_MAX_S""",
    "the bounds of the parts of one diagnosis, all of which end within the 10 s of its answer": """
        verbs.diagnose.ANSWER_S diagnosis.asking.NODE_S collecting.LOOK_EVERY_S
        collecting.COLLECT_S collecting.LOOKS_S diagnosing.SIGNS_S
        collecting.PY_SPY_ALL_S recorders.RAS_S recorders.DUMPS_S stacks.PY_SPY_S stacks.WRITTEN_S
        stacks.WRITTEN_LOOK_S diagnosis.silence.AGAIN_S diagnosis.silence.WINDOW_NS""",
    "a pause before something is tried or looked at again; no caller waits for its end": """
        exporting.EXPORT_EVERY_S exporting.BREATH_S exporting.LOOK_EVERY_S exporting.LOOK_S
        exporting.PAUSE_AFTER_S exporting.LAST_EXPORT_S otlp.SEND_S
        exporting.SAY_EVERY_S
        diagnosing.LOOK_S diagnosing.TELL_S
        prober.DIAL_AGAIN_S prober.ACCEPT_AGAIN_S cli.verbs.fabric.POLL_S
        cli.verbs.bus.POLL_S server_answers.FAREWELL_S server_answers.LOOK_S
        cli.verbs.trace.LOOK_S cli.verbs.cp.LOOK_FIRST_S cli.verbs.cp.LOOK_MAX_S
        api_gateway.channels.channel.AWAY_S api_gateway.channels.channel.RETRY_S connection.LINGER_S
        tls.EVERY_S
        records.DRAIN_S keeping.AGAIN_NS keeping.LOOK_NS standbys.LOOK_S dispatch.PROMOTION_LOOK_S
        dispatch.PROMOTION_S standby_runner.AGAIN_FIRST_S standby_runner.AGAIN_MAX_S
        standby_runner.LOCK_LOOK_S standby_runner.LOCK_WAIT_S standby_runner.LOOK_S
        standby_runner.PROBE_EVERY_S standby_runner.PROBE_S standby_runner.STEADY_S
        standbys.LOOK_IDLE_S checkpoint.SETTLED_NS device_weights.GRANT_S device_weights.LOOK_S
        on_devices.LINGER_NS admission.GONE_S errors.STOPPING_S
        revoking.AGAIN_S terms_nats.LOOK_S
        admission.LOOK_S answers.LOOK_FIRST_S answers.LOOK_MAX_S audit.service.GATHER_S
        audit.service.BEAT_S
        audit.service.RETRY_S call.LAST_WORDS_S
        cancellation.LOOK_S engine_readers.READ_S keeping_files.AGAIN_S
        cancellation.LAST_WORD_S closing.COPY_AGAIN_S closing.LOOK_EVERY_S process.service.TICK_S
        disk_watch.EVERY_S disk_watch.NEAR_S edge.UNAVAILABLE_S queue_errors.STARTING_S
        waking.FIRST_S waking.EVERY_S waking.ASKED_NS
        waking.FORGOTTEN_NS model_queue.TICK_S model_queue.WAIT_MORE_S
        openai.guard.SENDING_LOOK_S
        gateway.SURVEY_EVERY_S gateways.ASK_AGAIN_S http.audit.FOLLOW_WAIT_S kv_nats.CREATE_AGAIN_S
        limited.RETRY_S limited.SILENT_NS serving.adapters.FAILED_NS
        log_jetstream.CREATE_AGAIN_S feed_nats.GAP_PAUSE_S feed_nats.UNSUBSCRIBE_S
        core.decide.ASK_EVERY_NS
        core.decide.CHECK_AGAIN_NS notary.AGAIN_S notary.LOOK_S open_share.BUSY_S past.ALONE_S
        openai.adapters.RETRY_S
        peers.BURST_PAUSE_S
        peers.LOOK_MAX_S peers.ROSTER_EVERY_NS placed.LOOK_S publisher.AGAIN_S
        publisher.RETRY_S secret_answers.LOOK_S
        purse.REFUSED_NS relay.RETRY_FIRST_S
        openai.usage.EVERY_S openai.usage.DRAIN_S archive.USAGE_S audit.answers.READ_S
        cors.MAX_AGE_S
        reporter.EVERY_S reporter.PAUSE_S relay.RETRY_MAX_S relay.UNPLACED_WAIT_S relay.WAIT_MS
        serving.AGAIN_NS serving.EVERY_STARTING_NS
        checkpoints.LOOK_S checkpoints.LOOK_SOON_S apply.ASK_AFTER_NS apply.ASK_JITTER_NS
        devices.SAME_NS returning.LOOK_S device_filters.FOLLOW_S
        hangs.APART_NS preflight.FRESH_S scrubbing.AGAIN_S shares.WARN_EVERY_NS job_watch.EVIDENCE_S
        job_watch.LOOK_S
        trimmer.AGAIN_S vendor_devices.ASIDE_FIRST_S vendor_devices.ASIDE_MAX_S
        attempt_facts.CHECKPOINT_EVERY_NS
        uploads_nats.ABANDONED_S uploads_nats.SWEEP_S
        channels.followers.RETRY_AFTER_S relay.SOON_NS
        waiting.PACE_S views.rows.AGE_NS fair_turns.PAUSE_MAX_S
        time_shares.CREDIT_S time_shares.USED_MAX_S time_shares.ROUND_S time_shares.ALONE_S
        time_shares.STEP_S time_shares.CALM_S time_shares.PAUSE_MAX_S time_shares.CHANGE_S
        time_shares.CHANGE_BYTE_S collecting.EVERY_S collecting.LOOK_S collecting.ALL_EVERY_S
        edge.PIECE_S edge.BYTE_S
        ws.client.END_S ws.counts.EVERY_S
        sockets.LOOK_MAX_S ws.serving.SIGN_IN_S api_gateway.service.PING_S upcoming.KEPT_S
        rpc.calls.POLL_S introspection.LOOK_S introspection.SILENCE_S rpc.server.IDLE_MS
        rpc.server.PING_MS rpc.server.PING_LEAST_MS api_gateway.service.GRPC_AGAIN_S
        pulse.STILL_S pulse.EVERY_S alive.OLD_S alive.KILL_S store_watch.EVERY_S
        store_watch.ANSWER_S store_watch.SILENT_S compose.server.END_S
        space_watch.LOOK_S space_watch.WAIT_S replaced.LOOK_S
        vendor_devices.STALE_S node_reads.READ_S vendor_process.ANSWER_S vendor_process.BEGIN_S
        cancellation.END_AGAIN_S process.service.END_S candidate.ASK_EVERY_S
        candidate.ACCEPT_S candidate.TAKEN_OVER_S
        watch.SILENCE_MIN_MS watch.PAUSE_MAX_MS watch.RECONNECT_MS beside.END_S leading.BEAT_S
        quota.service.EMPTIED_S kept_rates.AGAIN_S writer.EMPTIED_LOOK_S process.service.SLOW_NS
        terms_nats.AGAIN_S telling.EVERY_S members.AWAY_S members.FORGOTTEN_S plane.SURVEY_S
        plane.CERTIFICATES_S survey_nats.SILENT_NS growth.SAMPLE_NS growth.MEASURED_MIN_NS
        growth.SECOND_NS growth.DAY_NS
        attempts.BACK_OFF_NS decide.preflight.GIVEN_UP_WAIT_NS
        api_gateway.access.log_bounds.RETRY_AFTER_S
        moments.memory.LOOK_S moments.places.OLDEST_FOR_NS moments.turns.RETRY_AFTER_S
        moments.turns.SLICE_S provider.KEPT_NS provider.KEYS_AGAIN_NS""",
    (
        "in a job's own process, which knows no settings: the default of MUSTER_DRIVER_CALL_S"
    ): "device.driver_library.CALL_S",
    (
        "a job's own process, the default of an argument: a broker that is restarted answers again"
    ): "broker_client.ANSWER_S broker_client.AGAIN_S",
    "a pull of a model, a job of its own: it goes on, or is repeated by the same command": """
        pulling.copies.CUT_SHORT_S pulling.copies.LOCK_LOOK_S pulling.download.PAUSE_FIRST_S
        pulling.download.PAUSE_MAX_S pulling.download.SLOW_S pulling.hub.SILENCE_S
        pulling.hub.JSON_S pulling.peer.WAIT_S pulling.peer.LOOK_S pulling.progress.EVERY_S
        pulled_models.LOOK_S pulled_models.UNPULL_S http.pulled.REMOVE_S""",
    "a link of a job's own program, whose calls take their deadline: `within_s`, `give_up_s`": """
        compression.ZSTD_BYTES_PER_S handshake.HANDSHAKE_S link.WITHIN_S link.LINGER_S
        progress.IDLE_S progress.TURN_S progress.DIAL_AGAIN_S transport.listening.LOOK_S
        transport.opening.DIAL_AGAIN_S proof.PROVE_S proof.READY_S queue_pair.PROVE_LOOK_S
        transports.RDMA_S rdma.SPIN_S""",
    "the protocol of links between agents: both nodes count on it": """
        grants.VALID_S links.serving.IDLE_S links.serving.LOOK_S links.links.ACCEPT_S
        links.links.GIVE_UP_S links.asking.ANSWER_S links.asking.LOOK_S links.copies.COPY_S
        links.dialling.CONNECT_S links.members.KNOWN_S links.members.LOOK_S
        grants.FORGOTTEN_NS grants.UNUSED_NS link_tokens.ALL_S avoided.FIRST_S
        avoided.LONGEST_S
        from_peers.SESSION_S from_peers.WAIT_S from_peers.COMING_S from_peers.LOOK_S
        from_peers.AGAIN_S fabric.choice.FAILED_S uploads.fetching.WAIT_S uploads.fetching.ANSWER_S
        uploads.fetching.LOOK_S uploads.fetching.SLOW_S
        tokens.VALID_MAX_S tokens.APART_NS tokens.SECOND_NS""",
    "the default of an argument for which a setting is given": """
        records.FLUSH_S vendor_process.RESET_S past.DEADLINE_S probe.PROBE_S
        profile.AWAY_S""",
    (
        "a scrape: Prometheus has a limit of its own, and this one is longer than any answer takes"
    ): "scraping.ANSWER_S scraping.FRESH_S collector.FRESH_S nvidia_profiling.BETWEEN_NS",
    "a script that a person runs and can stop": "setup.files.PROMTOOL_S setup.servers.ANSWER_S",
    "a channel into a job: both ends count on it": (
        "channel_messages.KEEPALIVE_S channel_messages.SILENCE_S"
    ),
    (
        "how long a plug-in may take: it is refused on every machine alike"
    ): "plugged.ADVANCE_NS plugged.HANG_S plugged.MEAN_NS",
    (
        "a rule of serving, measured by bench/serving.py: what an operator chooses are its inputs"
    ): """
        serving.admission.RETRY_MAX_S serving.admission.UNKNOWN_S
        demand.EVERY_NS demand.FRESH_NS latencies.WINDOW_NS
        autoscaling.GROW_AFTER_NS autoscaling.GROW_EVERY_NS autoscaling.MEAN_NS
        autoscaling.SHRINK_AFTER_NS autoscaling.SHRINK_EVERY_NS
        fairness.SLOT_NS fairness.STARVED_NS late_binding.PASSED_NS late_binding.HELD_BACK_NS
        shared_turns.SILENT_NS turn_exchange.EVERY_S late_binding.RATE_S
        shares.WINDOW_NS
        loads.AVOID_MAX_NS loads.AVOID_NS loads.LATE_FLOOR_NS loads.PROCESSED_MAX_NS
        loads.REPORT_NS hedging.AFTER_MIN_NS retry_budget.FREE_EVERY_NS
        prefix_index.TTL_NS routing.EQUAL_NS routing.PENALTY_NS""",
    "SQLite's own wait for another process of the same file": "store.engine.BUSY_MS",
    "the use of devices: what a sample covers, how often jobs have one, and what idle means": """
        efficiency.JUDGED_MS device_use.APART_NS device_use.IDLE_NOTED_NS use_watch.LOOK_S
        simulated.SPAN_MIN_S
        idle.RELEASE_GRACE_S idle.LOOK_EVERY_NS price_intents.IDLE_S price_intents.GRACE_S""",
    "a command at a terminal: the user can end it, and chooses MUSTER_AWAY_S": """
        forwarding.END_S attach.NOTE_AFTER_S
        audit.commands.CONNECT_S checks.ANSWER_S
        checks.OFFSET_MAX_S cli.models.POLL_EVERY_S disk.SYNC_SLOW_MS exchange.ASK_S
        cli.gateway.REPEAT_S client.one_shot.KEEPALIVE_IDLE_S log.AWAY_PAUSE_S
        prune.ANSWER_S state.FOLD_S stdin_forwarding.PAUSE_FIRST_S
        stdin_forwarding.PAUSE_MAX_S stopping.PAUSE_S stopping.TRIED_S support.ASK_S
        support.DOCTOR_S top.EVERY_S
        verify.CATCH_UP_POLL_S verify.CATCH_UP_S waiting_note.AGAIN_S
        waiting_note.NOTICE_S
        cli.controls.POLL_EVERY_S cli.controls.WAIT_S""",
    "the lease of notifications, counted on by all gateways, and the pace of their sender": """
        notify.lease.LEASE_S notify.lease.LOOK_S notifier.LOOK_S notifier.BEGIN_S
        sending.SEND_S mailing.STEP_S delivery.BACKOFF_FIRST_S delivery.BACKOFF_MAX_S
        delivery.KEEP_S delivery.IDLE_SAVE_S delivery.LEASE_POLL_S delivery.MARGIN_S
        positions.AGAIN_S notifications.TEST_EVERY_S""",
    "a backup or a restore at a terminal, which the user can end and repeat": """
        renewal.ANSWER_S remote.CONNECT_S remote.COMMAND_S rollout.POLL_S
        deploy.leaders.KEPT_NS deploy.plan.HEALTH_MIN_S deploy.plan.HEALTH_MAX_S
        copies_nats.ASK_TIMEOUT_S s3.REQUEST_S s3.FIRST_PAUSE_S
        backing_up.LEFT_S building.STOP_S
        backup.commands.CONNECT_S""",
    "`make release`, which a developer can end and repeat": """
        release.audit.TOOL_S licences.READ_S trial.INSTALL_S trial.STEP_S""",
    "muster up's own children on this machine; how long it waits for services is MUSTER_UP_*": """
        commands.BACKGROUND_S commands.DOWN_S commands.LEFT_BEHIND_GRACE_S commands.POLL_S
        compose.server.FAREWELL_S keeper.ANSWER_S
        keeper.ASK_EVERY_S keeper.RELOAD_PAUSE_S launcher.KEEPER_STOP_S launcher.LOG_S
        launcher.READY_ASK_S farewell.ASK_S launcher.READY_POLL_S
        launcher.SCHEDULER_STOP_S living.POLL_S local_gpus.SURVEY_S nats_config.TLS_S
        processes.BACKOFF_FIRST_S processes.BACKOFF_MAX_S
        processes.IN_A_ROW_S processes.SETTLED_S server_file.TEST_S servers.POLL_S
        servers.READY_S servers.STOP_S""",
}


def number(value: ast.expr) -> bool:
    """Made of literals alone, other than 0."""
    parts = list(ast.walk(value))
    return not any(isinstance(part, ast.Name) for part in parts) and any(
        isinstance(part, ast.Constant) and part.value for part in parts
    )


def constants() -> Iterator[str]:
    """`file:NAME` of every constant of time at the top of a file."""
    for path in sources("libs", "services"):
        for line in tree(path).body if name(path) != SETTINGS else ():
            target = (
                line.target
                if isinstance(line, ast.AnnAssign)
                else line.targets[0]
                if isinstance(line, ast.Assign)
                else None
            )
            if isinstance(target, ast.Name) and target.id.endswith(UNITS):
                yield f"{name(path).removesuffix('.py').replace('/', '.')}.{target.id}"


def waits(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the expressions that set the longest wait of a call."""
    yield from (
        keyword.value for keyword in call.keywords if keyword.arg in ("timeout", "timeout_s")
    )
    called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if called in ("timeout", "sleep") and call.args:
        yield call.args[0]


def stays(constant: str) -> bool:
    return any(
        f".{constant}".endswith(f".{each}") for names in STAY.values() for each in names.split()
    )


def test_no_wait_is_a_number_without_a_name() -> None:
    calls = [
        (path, node)
        for path in sources("libs", "services")
        for node in nodes(path)
        if isinstance(node, ast.Call)
    ]
    assert [
        f"{name(path)}:{call.lineno}"
        for path, call in calls
        if any(number(value) for value in waits(call))
    ] == []


def test_every_constant_of_time_is_no_choice_of_an_operator_s() -> None:
    """A new one: make it a setting, or name it in STAY under the reason why it is none."""
    assert [constant for constant in constants() if not stays(constant)] == []


def test_the_list_names_nothing_that_is_gone() -> None:
    there = [f".{constant}" for constant in constants()]
    named = [each for names in STAY.values() for each in names.split()]
    assert [
        each for each in named if not any(constant.endswith(f".{each}") for constant in there)
    ] == []
    assert len(named) == len(set(named))
