# Everything a fresh clone needs. `make up` for a running system, `make test` for the suite that CI runs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help install-run install-dev up test test-fast test-slow bench chaos soak lint newest-vllm figures format crds docs lock audit sbom images train train-eagle wheel wheel-compiled wheel-vllm changelog clean

help:
	@echo "make up      install, then run the embedded pair and the gateway (ARGS='--port 9000', ARGS='--engine vllm',"
	@echo "             ARGS='--model smollm2')"
	@echo "make test    the suite that CI runs: real Triton, vLLM, Redis and Kubernetes API server, all but the tests marked slow"
	@echo "             (ARGS='-k kill', ARGS=tests/gateway/api; ARGS='-n 4' for more workers than three)"
	@echo "make test-fast  unit tests only, a minute: no servers, no PyTorch"
	@echo "make test-slow  the tests marked slow: most samples, trainings, cluster stories; CI runs a quarter of them"
	@echo "make lint    ruff, mypy and the import contracts"
	@echo "make newest-vllm  which functions that the plugin uses differ in the newest release of vLLM, if that is untested"
	@echo "make figures lines, size of the wheel, start and memory of gateway and operator, against the release before"
	@echo "make bench   the figures of docs/measurements.md, on this machine (ARGS=--smoke for a quick look)"
	@echo "make chaos   faults on real processes, one table (ARGS='--only triton-kill --times 50', ARGS=--full)"
	@echo "make soak    an hour of steady load: memory, latency, errors (ARGS='--minutes 10')"
	@echo "make crds    the charts' parts that are made from the code: custom resources, dashboards, alerts"
	@echo "make docs    the site into .run/site, and the reference pages that are made from the code"
	@echo "make audit   bandit over the code, known vulnerabilities of what is pinned (where their service is reached)"
	@echo "make sbom    what is installed, here and in the images, as CycloneDX: .run/sbom*.json"
	@echo "make lock    the hashes that the images are built with, after a change of constraints.txt or s3.in"
	@echo "make images  the container images (BUILDER=buildah; TRITON_IMAGE=… where yours has another name)"
	@echo "make wheel   the package, pure Python; make wheel-compiled: with compiled code, for this platform;"
	@echo "             make wheel-vllm: vLLM's plugin"
	@echo "make changelog  move the release notes of changes/ into CHANGELOG.md"
	@echo "make train   train an embedded pair from its seed (an hour or so on 2 cores, resumes)"

up: install-run
	@exec $(BIN)/slipstream up $(ARGS)

test: install-dev
	$(BIN)/python -m tests.suite -m 'not slow' $(ARGS)

test-fast: install-dev
	$(BIN)/python -m pytest --unit -m 'not slow' -n 2 --dist loadscope $(ARGS)

test-slow: install-dev
	$(BIN)/python -m tests.suite -m slow --record $(ARGS)

bench: install-dev
	$(BIN)/python -m tests.benchmarks $(ARGS)

chaos: install-dev
	$(BIN)/python -m tests.e2e.chaos $(ARGS)

soak: install-dev
	$(BIN)/python -m tests.e2e.chaos --soak $(ARGS)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

newest-vllm: install-dev
	$(BIN)/python -m tests.support.vllm_hooks

figures: install-dev
	$(BIN)/python -m tests.figures

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crds: install-dev
	$(BIN)/python -m slipstream_core.manifest.crd charts/slipstream-crds/templates
	$(BIN)/python -m deploy.generate

docs: install-dev
	$(BIN)/python -m docs.generate
	$(BIN)/mkdocs build --strict

# A vulnerability service that cannot be reached is said and fails nothing: code and pins are judged all the same. One
# that answers, and knows of something, fails.
audit: install-dev
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml gateway operator kernels deploy
	$(BIN)/python -m deploy.audit_pins

sbom: install-dev
	@mkdir -p .run
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o .run/sbom.json $(BIN)/python
	for image in gateway drafts operator; do $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml \
	  --output-reproducible -o .run/sbom-$$image.json requirements/$$image.txt || exit 1; done

# The packages of an image, each file with its hashes; the versions are those of constraints.txt. PyTorch and Triton's
# wheel are not among them: the build that fits depends on the GPU and comes with the base image.
LOCK := $(BIN)/uv pip compile --quiet --python-version 3.11.2 --generate-hashes --no-header --no-annotate
LOCK_OURS := $(LOCK) --constraint constraints.txt pyproject.toml
lock: install-dev
	$(LOCK_OURS) --extra gateway --extra redis --extra kubernetes --output-file requirements/gateway.txt
	$(LOCK_OURS) --extra drafts --output-file requirements/drafts.txt
	$(LOCK_OURS) --extra operator --output-file requirements/operator.txt
	$(LOCK) --output-file requirements/s3.txt requirements/s3.in

VERSION      := 0.3.0
TRITON_IMAGE ?= nvidia/tritonserver:25.05-py3
VLLM_IMAGE   ?= vllm/vllm-openai:v0.32.0
BUILDER      ?= docker
images:
	$(BUILDER) build -f deploy/docker/gateway.Dockerfile -t slipstream-gateway:$(VERSION) .
	$(BUILDER) build -f deploy/docker/gateway.Dockerfile -t slipstream-gateway:$(VERSION)-capture --build-arg CAPTURE=yes .
	$(BUILDER) build -f deploy/docker/operator.Dockerfile -t slipstream-operator:$(VERSION) .
	$(BUILDER) build -f deploy/docker/triton.Dockerfile -t slipstream-triton:$(VERSION) --build-arg TRITON_IMAGE=$(TRITON_IMAGE) .
	$(BUILDER) build -f deploy/docker/vllm.Dockerfile -t slipstream-vllm:$(VERSION) --build-arg VLLM_IMAGE=$(VLLM_IMAGE) .

# Seven training runs. Each one resumes after an interruption; checkpoints stay in $(TRAIN) until the last lines copy them.
TRAIN   := .run/train
EMBEDDED := kernels/slipstream_engine/embedded
SERVED := config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json
TRAINER := $(BIN)/python -m slipstream_training.embedded.train
train: install-dev
	$(BIN)/python -m slipstream_training.embedded.train_tokenizer --out $(TRAIN)/tokenizer
	$(TRAINER) copier --tokenizer $(TRAIN)/tokenizer --out $(TRAIN)/copier
	$(TRAINER) stem --tokenizer $(TRAIN)/tokenizer --init $(TRAIN)/copier --out $(TRAIN)/stem
	$(TRAINER) target --tokenizer $(TRAIN)/tokenizer --init $(TRAIN)/stem --out $(TRAIN)/grown
	$(TRAINER) polish --tokenizer $(TRAIN)/tokenizer --init $(TRAIN)/grown --out $(TRAIN)/target
	$(TRAINER) draft --tokenizer $(TRAIN)/tokenizer --out $(TRAIN)/draft-base
	$(TRAINER) draft --target $(TRAIN)/target --init $(TRAIN)/draft-base --out $(TRAIN)/draft
	cp $(addprefix $(TRAIN)/target/,$(SERVED)) $(EMBEDDED)/target/
	cp $(addprefix $(TRAIN)/draft/,$(SERVED)) $(EMBEDDED)/draft/

# The EAGLE head of SmolLM2, from JSON lines with `messages`: make train-eagle TARGET=DIR PROMPTS=FILE
train-eagle: install-dev
	$(BIN)/python -m slipstream_training.collect --target $(TARGET) --prompts $(PROMPTS) --out $(TRAIN)/answers.jsonl
	$(BIN)/python -m slipstream_training --answers $(TRAIN)/answers.jsonl --target $(TARGET) --new eagle --output $(TRAIN)/eagle
	cp $(addprefix $(TRAIN)/eagle/,config.json model.safetensors draft_token_ids.json) $(EMBEDDED)/smollm2-eagle/

wheel: install-dev
	$(BIN)/python -m build --wheel

wheel-vllm: install-dev
	$(BIN)/python -m build --wheel --outdir dist kernels/slipstream_vllm

# The same wheel for one platform and one Python, with compiled code; needs a C compiler.
wheel-compiled: install-dev
	SLIPSTREAM_COMPILE=1 $(BIN)/python -m build --wheel --no-isolation

changelog:
	$(PYTHON) -m deploy.changes

clean:
	rm -rf $(VENV) build dist .run .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Installs what is missing or has changed. Interrupted at any moment, it starts anew with the next `make`.
install-run install-dev:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "slipstream needs Python 3.11 or 3.12; '$(PYTHON)' was not found (make up PYTHON=/path/to/python)" >&2; exit 1; }
	@exec $(PYTHON) deploy/install.py $(VENV) $(@:install-%=%)
