# Two commands do everything: `make up` and `make test`. The rest is listed by `make help`.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Without compiled modules each process takes twice as long to start.
unexport PYTHONDONTWRITEBYTECODE
# Over five processes: some wait for clusters while others compute. In the order of tests/conftest.py.
SPREAD := -n 5 --dist loadfile --no-loadscope-reorder
# Every line and branch of the pure files.
PURE := $(BIN)/python -m coverage report -m --precision=2 --fail-under=100 --include=`$(BIN)/python -c "from tests.pure_files import PURE; print(','.join(PURE))"`
GUARD := services/node_agent/supervisor/guard
INIT := services/node_agent/runtimes/init
WATCHDOG := services/node_agent/watchdog/watchdog

.DEFAULT_GOAL := help
.PHONY: help install up down clean test test-drivers test-containers gpu attack drills alerts memory clients check pure fix sim sim-nightly chaos bench bench-compare soak scale generate docs e2e netns fabric rdma guard init watchdog browser examples site site-test isolation release

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "muster needs $(PYTHON) 3.11 or newer: install it (Debian, Ubuntu: apt install python3 python3-venv)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "muster needs Python 3.11 or newer: set PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "muster needs Python's venv: install it (Debian, Ubuntu: apt install python3-venv)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once, about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

install: $(STAMP) ## install into .venv, without starting a cluster

up: $(STAMP) ## start the cluster here, in the foreground (Ctrl-C stops it; ARGS="--nodes 4 --gpus 8")
	@$(BIN)/muster up $(ARGS)

down: $(STAMP) ## stop the cluster that `make up` started
	@$(BIN)/muster down $(ARGS)

clean: $(STAMP) ## remove the cluster's state (asks first)
	@$(BIN)/muster clean $(ARGS)

test: $(STAMP) ## unit, property, simulation, contract, integration and tidy tests
	@$(BIN)/python -m tests.compiled
	@$(BIN)/python -m pytest $(SPREAD) tests || { test $$? -eq 1 && echo "again, and alone, what failed beside others:" \
	  && $(BIN)/python -m pytest --last-failed --last-failed-no-failures none tests; }

test-drivers: $(STAMP) ## the GPU drivers' tests alone: real bindings over libraries built from C (needs a C compiler)
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/drivers

gpu: $(STAMP) ## what only a machine with an NVIDIA GPU can show, with its figures; skipped elsewhere, with the reason
	@$(BIN)/python -m pytest -rs -s tests/gpu

memory: $(STAMP) ## kill -9 of memory broker, weight server, agent and holders at 200 random schedules
	@MUSTER_MEMORY_SEEDS=200 $(BIN)/python -m pytest -q tests/integration/test_memory_broker.py \
	  tests/integration/test_gms_crashes.py

attack: $(STAMP) ## what hostile tenants, hostile nodes and broken devices try (docs/security.md), against real parts
	@MUSTER_TEST_DRILLS=1 MUSTER_TEST_SECONDS=150 $(BIN)/python -m pytest -n 2 --dist loadfile -m attack tests

drills: $(STAMP) ## clusters that lose servers, disks and everything, are restored, upgraded and deployed (root for all of it); more seeds of the simulation
	@MUSTER_TEST_DRILLS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -rs -m drill tests

alerts: $(STAMP) ## break a real cluster in every way that an alert names; each fires and clears in a real Prometheus (root for all of it)
	@MUSTER_TEST_DRILLS=1 $(BIN)/python -m pytest -rs -s tests/integration/test_alerts_cluster.py

test-containers: $(STAMP) ## jobs in containers of a real engine (MUSTER_CONTAINER_ENGINE: its socket; needs busybox)
	@$(BIN)/python -m pytest -rs tests/integration/test_containers.py tests/integration/test_model_containers.py \
	  tests/integration/test_container_options.py tests/integration/test_container_images.py tests/integration/test_manifest_containers.py \
	  tests/integration/test_container_execs.py tests/integration/test_container_cdi.py

clients: $(STAMP) ## LiteLLM, LangChain and OpenAI's clients for Python and Node.js against llama.cpp in a cluster (installs 700 MB once)
	@MUSTER_TEST_CLIENTS=1 $(BIN)/python -m pytest -rs tests/clients tests/integration/test_openai_clients.py tests/integration/test_openai_cluster.py

browser: $(STAMP) ## the dashboard in Chromium: every page, actions in a real cluster; pictures in build/browser (needs chromium)
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[browser]'
	@MUSTER_TEST_BROWSER=1 $(BIN)/python -m pytest -rs tests/browser

examples: $(STAMP) ## every program of examples/ against a real cluster (PYTHON_WITH_TORCH: an interpreter with PyTorch)
	@MUSTER_TEST_DRILLS=1 $(BIN)/python -m pytest -rs tests/examples

site: $(STAMP) ## the book: all pages as a site in build/site, which asks no other host
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]'
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. $(BIN)/python -m mkdocs build --quiet --strict && echo "build/site/index.html"

site-test: $(STAMP) ## the site, and every command of the tutorial and the deployment guide against real clusters
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]'
	@MUSTER_TEST_DRILLS=1 $(BIN)/python -m pytest -rs tests/site

check: $(STAMP) ## format, lint, types, security, and the tests with coverage (without the simulation)
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/bandit -q -c pyproject.toml -r libs services
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m tests.measured
	@$(BIN)/python -m coverage combine -q; $(BIN)/python -m coverage report --skip-covered --fail-under=90
	@$(PURE)

pure: $(STAMP) ## coverage of the pure files by unit and property tests alone, in minutes
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m tests.measured tests/unit tests/property
	@$(BIN)/python -m coverage combine -q; $(PURE)

fix: $(STAMP) ## format and repair what the linter can
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

sim: $(STAMP) ## simulate: N=5000 seeds, or one SEED=7 with its last facts (DEEP=1: deeper faults in swarms)
	@$(BIN)/python -m tests.sim $(if $(DEEP),--deep) $(if $(CALM),--calm) $(if $(SEED),--seed $(SEED),--seeds $(or $(N),200))

sim-nightly: $(STAMP) ## simulate this day's seeds, deep and stormy (N=4000 of each; hours)
	@$(BIN)/python -m tests.sim --nightly --jobs 2 $(if $(N),--seeds $(N))

chaos: $(STAMP) ## kill every process in turn under real jobs and models (JOBS=500 KILLS=49 MINUTES=3 SEED=1 SCENARIO=kill|freeze|agent|models|cluster)
	@$(BIN)/python -m tests.chaos $(if $(JOBS),--jobs $(JOBS)) $(if $(KILLS),--kills $(KILLS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED))

e2e: $(STAMP) ## the black-box suite against docker compose, or against processes where no engine answers
	@$(BIN)/python -m tests.e2e

netns: $(STAMP) ## a second host in a network namespace joins; a nats-server is cut off (needs root)
	@MUSTER_TEST_DRILLS=1 $(BIN)/python -m pytest -rs tests/netns/test_second_host.py tests/netns/test_cut_off_server.py

fabric: $(STAMP) ## plant slow nodes and links among 16 network namespaces and find them (MUSTER_FABRIC_SEEDS=20; needs root)
	@MUSTER_FABRIC_SEEDS=$(or $(MUSTER_FABRIC_SEEDS),20) $(BIN)/python -m pytest -rs -s tests/netns/test_fabric.py

rdma: $(STAMP) ## links over real verbs, in a QEMU guest with Soft-RoCE; says so where the guest cannot run
	@$(BIN)/python -m tests.guest

bench: $(STAMP) ## measure: NAME=throughput (QUICK=1 for under 50 s; PEER=slurm beside another system)
	@QUICK=$(QUICK) PEER=$(PEER) $(BIN)/python -m bench.$(NAME)

bench-compare: $(STAMP) ## measure NAME=x in the revision BASE and here, in turns, and print medians and ratios (ROUNDS=3 REV= QUICK=1)
	@QUICK=$(QUICK) $(BIN)/python -m bench.compare $(or $(BASE),$(error give the revision to compare with: BASE=HEAD~1)) $(or $(NAME),$(error give a benchmark: NAME=placement_whole)) $(if $(REV),--rev $(REV)) $(if $(ROUNDS),--rounds $(ROUNDS))

isolation: $(STAMP) ## waits of calm tenants beside each kind of storm of a hostile one, and without it (TENANTS=10 TASKS=100 STORM=lists ROUNDS=3 QUICK=1)
	@QUICK=$(QUICK) $(if $(TENANTS),TENANTS=$(TENANTS)) $(if $(TASKS),TASKS=$(TASKS)) $(if $(STORM),STORM=$(STORM)) $(if $(ROUNDS),ROUNDS=$(ROUNDS)) $(BIN)/python -m bench.isolation

soak: $(STAMP) ## a cluster under churn; slope of memory, descriptors and tasks of each process (MINUTES=30 SEED=1 DIR=folder)
	@$(BIN)/python -m bench.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(DIR),--folder $(DIR))

scale: $(STAMP) ## a cluster of 8, 128 and 1,250 nodes on this machine: its curve and its first limit (SIZES=8,128 QUICK=1)
	@QUICK=$(QUICK) $(if $(SIZES),SIZES=$(SIZES)) $(BIN)/python -m bench.scale

release: $(STAMP) ## build wheel and sdist twice, try them in an empty environment, list and audit what they bring; into dist/ (ARGS=--unaudited)
	@$(BIN)/python -c 'import build, cyclonedx_py, pip_audit' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]'
	@$(BIN)/python -m libs.release $(ARGS)

guard: ## build the program that becomes a job (after a change of guard.c; x86-64)
	$(CC) -Os -Wall -Wextra -static -nostdlib -ffreestanding -fno-asynchronous-unwind-tables -fno-stack-protector -fcf-protection=none -s \
	  -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,norelro -o $(GUARD).x86_64 $(GUARD).c
	cd $(dir $(GUARD)) && sha256sum guard.c guard.x86_64 > guard.sha256

init: ## build the first process of containers (after a change of init.c; x86-64)
	$(CC) -Os -Wall -Wextra -static -nostdlib -ffreestanding -fno-asynchronous-unwind-tables -fno-stack-protector -fcf-protection=none -s \
	  -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,norelro -o $(INIT).x86_64 $(INIT).c
	cd $(dir $(INIT)) && sha256sum init.c init.x86_64 > init.sha256

watchdog: ## build the lease watchdog (after a change of watchdog.c; x86-64)
	$(CC) -Os -Wall -Wextra -static -nostdlib -ffreestanding -fno-asynchronous-unwind-tables -fno-stack-protector -fcf-protection=none -s \
	  -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,norelro -o $(WATCHDOG).x86_64 $(WATCHDOG).c
	cd $(dir $(WATCHDOG)) && sha256sum watchdog.c watchdog.x86_64 > watchdog.sha256

generate: $(STAMP) ## write what is made from the code: pages of docs/, openapi.json, proto files, the client's generated parts
	@$(BIN)/python -m tests.metrics_catalogue
	@$(BIN)/python -m libs.docs
	@$(BIN)/python -m services.api_gateway.description

docs: generate ## the same
