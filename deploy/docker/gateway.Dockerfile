# The gateway alone: no torch, no Triton, no GPU.
#
#   docker build -f deploy/docker/gateway.Dockerfile -t slipstream-gateway .
#   docker run -p 8080:8080 -v ./pair.yaml:/etc/slipstream/pair.yaml:ro slipstream-gateway
FROM python:3.12-slim-bookworm AS wheel
WORKDIR /src
RUN pip install --no-cache-dir build
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
COPY operator operator
COPY kernels kernels
COPY deploy/model_repository deploy/model_repository
RUN python -m build --wheel --outdir /wheels

FROM python:3.12-slim-bookworm
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir -c /tmp/constraints.txt "$(ls /tmp/wheels/*.whl)[gateway]" \
    && rm -rf /tmp/wheels /tmp/constraints.txt \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin slipstream
USER 10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health/live', timeout=2)"]
ENTRYPOINT ["slipstream", "gateway", "--host", "0.0.0.0"]
CMD ["--manifest", "/etc/slipstream/pair.yaml"]
