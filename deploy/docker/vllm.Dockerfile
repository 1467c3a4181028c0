# vLLM with Slipstream's plugin, for pairs of engine kind vllm that the operator runs.
#
#   docker build -f deploy/docker/vllm.Dockerfile -t slipstream-vllm:0.3.0 . \
#     --build-arg VLLM_IMAGE=…   # vLLM's own image, by its name in the registry that you use
#
# The plugin starts on the tested release of vLLM only (docs/howto/vllm.md).
ARG VLLM_IMAGE=vllm/vllm-openai:v0.32.0

FROM ${VLLM_IMAGE} AS build
WORKDIR /src
COPY constraints.txt ./
COPY kernels/slipstream_vllm slipstream_vllm
RUN python3 -m venv /build && /build/bin/pip install --no-cache-dir -c constraints.txt build hatchling \
    && /build/bin/python -m build --wheel --no-isolation --outdir /wheels slipstream_vllm

FROM ${VLLM_IMAGE}
COPY --from=build /wheels /wheels
COPY constraints.txt ./
RUN python3 -m pip install --no-cache-dir --no-deps -c constraints.txt /wheels/*.whl && rm -r /wheels constraints.txt
# Downloads from s3:// use the boto3 that vLLM's image has.
COPY deploy/docker/s3_download.py /opt/slipstream/s3_download.py
RUN python3 -c "import boto3"
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s \
    CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8000/health"]
ENTRYPOINT ["vllm", "serve"]
