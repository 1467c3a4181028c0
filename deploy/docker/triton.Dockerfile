# Triton Inference Server with Slipstream's engine, for GPU nodes; it decodes on CPUs where there is no GPU.
#
#   docker build -f deploy/docker/triton.Dockerfile -t slipstream-triton:0.3.0 . \
#     --build-arg TRITON_IMAGE=…   # NVIDIA's tritonserver image, by its name in the registry that you use
#   docker run --gpus all --read-only --tmpfs /tmp:exec --shm-size 256m -p 8000-8002:8000-8002 -v /path/to/pair:/models:ro \
#     -v /path/to/model_repository:/opt/slipstream/model_repository:ro slipstream-triton:0.3.0
#
# The model repository in the image serves the embedded pair; to serve your own pair, mount a
# repository whose config.pbtxt has your checkpoint folders in the parameters `target` and `draft`. In a cluster the
# operator does that.
#
# vLLM inside Triton needs vLLM 0.32.0 and the plugin in a separate environment, which this image does not have;
# docs/howto/vllm-triton.md has a Dockerfile for it.
ARG TRITON_IMAGE=nvidia/tritonserver:25.05-py3

FROM ${TRITON_IMAGE} AS build
WORKDIR /src
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /build
COPY constraints.txt requirements/s3.txt ./
RUN /build/bin/pip install --no-cache-dir -c constraints.txt build hatchling
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY gateway gateway
COPY operator operator
COPY kernels kernels
COPY deploy/model_repository deploy/model_repository
RUN /build/bin/python -m build --wheel --no-isolation --outdir /wheels
# The stub of Triton's Python backend uses the packages of the first python3 in PATH: this environment.
RUN python3 -m venv /opt/slipstream/venv \
    && /opt/slipstream/venv/bin/pip install --no-cache-dir -c constraints.txt "$(ls /wheels/*.whl)[engine,gpu,drafts]" \
    && /opt/slipstream/venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r s3.txt

FROM ${TRITON_IMAGE}
COPY --from=build /opt/slipstream/venv /opt/slipstream/venv
COPY deploy/docker/s3_download.py /opt/slipstream/s3_download.py
COPY deploy/model_repository/slipstream /opt/slipstream/model_repository/slipstream
ENV PATH=/opt/slipstream/venv/bin:${PATH} HOME=/tmp PYTHONDONTWRITEBYTECODE=1
# The user triton-server of NVIDIA's image, as a number, so that Kubernetes can verify that it is not root.
USER 1000:1000
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8000/v2/health/ready"]
ENTRYPOINT ["tritonserver", "--model-repository=/opt/slipstream/model_repository", "--disable-auto-complete-config"]
