"""The meaning of the settings of node agents; `help_texts.py` has all others."""

from typing import Final

NODE_HELP: Final = {
    "link_port": "Agent: port at which it takes links of other agents. 0: a free port.",
    "link_transport": (
        "Agent: transport of links to other agents. auto: RDMA where both nodes have a path over "
        "it, else TCP. tcp: TCP."
    ),
    "link_tenant_bytes_per_s": (
        "Agent: bytes per second that it sends over links for each tenant. 0: no bound."
    ),
    "node_cpus": "CPUs of this node that jobs may request. 0: all that the agent may use.",
    "node_memory_gib": "Host memory of this node that jobs may request. 0: all of it.",
    "node_labels": "Labels of this node that jobs may request, for example pool=a,disk=nvme.",
    "node_rack": "Rack (leaf switch) of this node.",
    "node_spine": "Spine switch of this node.",
    "gpu_driver": "`simulated`, or `local` for the GPUs of this machine.",
    "gpus_removed": (
        "Agent: GPUs that were removed from this machine or that Muster must not use: UUIDs or "
        "PCI addresses, separated by commas. If such a GPU is on the PCI bus and its driver does "
        "not show it, no job can open its device nodes, for example to render."
    ),
    "simulated_gpus": "Number of simulated GPUs of this agent.",
    "simulated_model": "Model name of the simulated GPUs.",
    "simulated_memory_gib": "Memory of each simulated GPU.",
    "keep_hours": "Agent: how long the output of an ended job stays on its node.",
    "keep_bytes": (
        "Agent: total size of that output. Beyond it, the tenant with the most output loses its "
        "oldest first."
    ),
    "keep_jobs": "Agent: number of ended jobs whose output is kept.",
    "kept_artefact_bytes": "Agent: bytes of compile products of models that the node keeps.",
    "kept_memory_dir": "Agent: folder on a tmpfs in which weights of models are kept in memory.",
    "tail_hours": (
        "How long the last 64 KiB of each job's output are stored away from its node. It applies "
        "when the bucket is created."
    ),
    "tail_bytes": (
        "Total size of these stored ends of output. It applies when the bucket is created."
    ),
    "release_ms": (
        "Agent: time to prove that a device is clean after its job. A device that takes longer "
        "is quarantined."
    ),
    "driver_answer_ms": (
        "Agent: time for a GPU driver to answer. A device that is silent twice is out of use "
        "until it answers."
    ),
    "driver_begin_ms": (
        "Agent: time for the first call into a driver, and for the first call on each device, "
        "which takes seconds without persistence mode."
    ),
    "driver_reset_s": (
        "Agent: time for the reset of a device. Meanwhile the other devices of this vendor are "
        "not sampled."
    ),
    "sample_ms": (
        "Agent: interval at which real devices are sampled. Values down to 10 are possible."
    ),
    "alive_file": (
        "File that a service touches every few seconds while it makes progress. Empty: none."
    ),
    "metrics_host": (
        "Agent: address on which the agent serves device metrics to Prometheus, without "
        "authentication."
    ),
    "metrics_port": (
        "Agent: port of these metrics. The nodes of `muster up` take this port and the following "
        "ones. 0: serve no metrics."
    ),
    "probe_ms": "Agent: time for a replica to answer on its health path.",
    "kernel_log": "Agent: kernel log in which the agent finds device errors.",
    "health_catalogue": (
        "Agent: catalogue that gives device errors their meaning: nvidia-guidance or "
        "platform-design."
    ),
    "health_site": (
        "Agent: verdicts of your site for errors that the catalogue leaves open, for example xid "
        "74=reset, xid 144=replace."
    ),
    "health_shadow": "Agent: 1 records the verdicts about device errors, but acts on none of them.",
    "health_breaker_percent": (
        "Agent: if more than this percentage of the node's devices, and more than one, need a "
        "repair within MUSTER_HEALTH_BREAKER_S, no device is reset."
    ),
    "health_breaker_s": "Agent: time window of MUSTER_HEALTH_BREAKER_PERCENT.",
    "health_pause_c": "Agent: temperature in degrees Celsius at which a device takes no new work.",
    "health_resume_c": (
        "Agent: temperature in degrees Celsius below which that device takes work again."
    ),
    "health_hot": (
        "Agent: limits for a device that is too hot, by vendor, in percent of its maximum, for "
        "example nvidia=power:60,*=clocks:50. Empty: none."
    ),
    "health_corrected_max": (
        "Agent: number of corrected memory errors of one device within "
        "MUSTER_HEALTH_CORRECTED_WINDOW_S above which the agent records an error."
    ),
    "health_link_errors_max": (
        "Agent: the same number for errors of the device's direct links, and for packets that "
        "PCIe sent again."
    ),
    "health_corrected_window_s": "Agent: time window of these two numbers.",
    "mps_control": "Agent: control program of NVIDIA MPS: a path, or a name to find in PATH.",
    "mps_start_ms": (
        "Agent: time for an MPS daemon to answer after its start. If it does not, the job that "
        "needs it is refused."
    ),
    "mps_quit_ms": "Agent: time for an MPS daemon to quit before it is killed.",
    "container_engine": (
        "Agent: socket of Docker or Podman for jobs with an image. Empty: the usual paths."
    ),
    "container_mounts": (
        "Agent: directories that containers may mount, with what lies below them, separated by "
        "commas; :ro for reading only (/data,/models:ro). Empty: none."
    ),
    "container_users": (
        "Agent: ids of users that images and --user may choose where jobs have Unix users of "
        "their own, such as 1000-1999,65534. Never 0 or an id of other jobs. Empty: only the "
        "job's own."
    ),
    "container_image_bytes": (
        "Agent: bytes of images that it pulled. Beyond them it removes the least recently used "
        "images that no job uses. 0: no bound."
    ),
    "container_cache_bytes": (
        "Agent: bytes of the named caches of each tenant. Beyond them the least recently used "
        "caches of the tenant are removed before one of its jobs starts. 0: no bound."
    ),
    "hub": "Agent: address of the hub from which `muster model pull` gets models.",
    "pulled_dir": (
        "Agent: folder for the models that jobs pull to this node. All users must be able to pass "
        "the folders above it. Empty: `pulled` in the state directory."
    ),
    "pulled_bytes": (
        "Agent: bytes of the pulled models of each tenant. Beyond them a pull removes the tenant's "
        "least recently used ones that no job uses. 0: no bound."
    ),
    "traces": "Agent: 1 lets `muster trace` trace the jobs of this node; 0 does not.",
    "trace_cupti": (
        "Agent: 1 builds the CUPTI library, where a C compiler and CUPTI are, and gives it to all "
        "jobs, so that programs which use CUDA without PyTorch can be traced."
    ),
    "trace_job_bytes": (
        "Agent: bytes of the traces of one job that the node keeps. Beyond them the oldest go."
    ),
    "trace_bytes": (
        "Agent: bytes of all traces that the node keeps. Beyond them the oldest of the tenant that "
        "has most go."
    ),
    "diagnose_after_s": (
        "Agent, gateway: seconds without a sign of progress after which a job with several ranks "
        "is diagnosed without a request. 0: never."
    ),
    "diagnose_hook": (
        "Agent: 1 registers faulthandler in the Python interpreters of jobs, by PYTHONPATH, so "
        "that `muster diagnose` sees their stacks; 0 does not."
    ),
    "preflight": "Agent: 1 checks the devices of a job before it starts; 0 does not.",
    "burn_in": (
        "Agent: command that tests a device ($MUSTER_GPUS) after a reset or a quarantine, before "
        "it takes work. Empty: no test."
    ),
    "burn_in_ms": "Agent: time for this test; a test that takes longer has failed.",
    "scrub": (
        "Agent: how the memory of a device is cleared when it is released: `reset`, or a command "
        "that overwrites it ($MUSTER_GPUS). Empty: it is not cleared."
    ),
    "scrub_ms": "Agent: time for the command of MUSTER_SCRUB.",
    "hardware_watchdog": "Agent: hardware watchdog that resets this machine when jobs outlive "
    "their lease and nothing ends them, for example /dev/watchdog. Empty: none.",
    "hardware_watchdog_s": "Agent: time after which that watchdog resets the machine. At least 2 s "
    "shorter than the cluster's lease.",
    "share_grace_s": (
        "Agent: how long a job may use more device memory than its fraction, after a warning, "
        "before it is ended. 0: it is only warned."
    ),
    "execs_per_job": (
        "Agent: number of `muster exec` processes that may run beside one job, at most 32. 0: none."
    ),
    "cgroup": (
        "Agent: parent of the jobs' control groups, relative to the root of each hierarchy. "
        "Empty: jobs get no control groups."
    ),
    "job_users": (
        "Agent: Unix users that jobs run as: TENANT/USER=UNIXUSER, separated by commas, with * "
        "for any (team/ann=ann,lab/*=lab,*=jobs); or `self` for the agent's own user."
    ),
    "tenant_uids": (
        "Agent: range of Unix user ids for tenants that MUSTER_JOB_USERS does not name, "
        "FIRST-LAST. Only an agent that runs as root uses it."
    ),
    "tenant_uid_table": "Agent: file with the Unix user id of each tenant on this machine.",
    "log_level": "Lowest level of log lines: DEBUG, INFO, WARNING or ERROR.",
    "otlp_endpoint": (
        "Address of an OpenTelemetry collector (OTLP over HTTP), for example http://otel:4318. "
        "Empty: OTEL_EXPORTER_OTLP_ENDPOINT; if neither is set, no spans are recorded."
    ),
    "span_job_percent": "Part of the submitted jobs whose spans are recorded, in percent.",
    "span_request_percent": (
        "Gateway: part of the other requests whose spans are recorded, in percent."
    ),
    "record_ms": "Gateway: how long a request waits until the log has stored its facts.",
}
