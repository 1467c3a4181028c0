# Triton Inference Server with Slipstream's engine on a GPU node.
#
#   docker build -f deploy/docker/triton.Dockerfile -t slipstream-triton . \
#     --build-arg TRITON_IMAGE=…   # NVIDIA's tritonserver image, by its name in the registry that you use
#   docker run --gpus all --shm-size 256m -p 8000-8002:8000-8002 -v /path/to/pair:/models:ro \
#     -v /path/to/model_repository:/opt/slipstream/model_repository:ro slipstream-triton
#
# The model repository in the image serves the embedded pair; mount your own, with the parameters `target` and
# `draft` of its config.pbtxt at checkpoint folders, to serve yours.
ARG TRITON_IMAGE=nvidia/tritonserver:25.05-py3

FROM ${TRITON_IMAGE} AS wheel
WORKDIR /src
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /build && /build/bin/pip install --no-cache-dir build
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY operator operator
COPY kernels kernels
COPY deploy/model_repository deploy/model_repository
RUN /build/bin/python -m build --wheel --outdir /wheels

FROM ${TRITON_IMAGE}
# The stub of Triton's Python backend takes its packages from the first python3 in PATH: this environment.
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/slipstream/venv
ENV PATH=/opt/slipstream/venv/bin:${PATH}
COPY constraints.txt /opt/slipstream/constraints.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir -c /opt/slipstream/constraints.txt \
    "$(ls /tmp/wheels/*.whl)[engine,gpu]" && rm -rf /tmp/wheels
COPY deploy/model_repository /opt/slipstream/model_repository
# NVIDIA's image comes with this user, number 1000.
USER triton-server
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD curl --fail --silent http://127.0.0.1:8000/v2/health/ready
ENTRYPOINT ["tritonserver", "--model-repository=/opt/slipstream/model_repository", "--disable-auto-complete-config"]
