# The operator: kopf, the Kubernetes client and Redis, without serving dependencies.
#
#   docker build -f deploy/docker/operator.Dockerfile -t slipstream-operator:0.2.0 .
FROM python:3.12.11-slim-bookworm AS build
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt build hatchling
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY gateway gateway
COPY operator operator
COPY kernels kernels
COPY deploy/model_repository deploy/model_repository
RUN python -m build --wheel --no-isolation --outdir /wheels
COPY requirements/operator.txt ./requirements.txt
# Dependencies with hashes first; then our own wheel, without downloads.
RUN python -m venv /opt/slipstream \
    && /opt/slipstream/bin/pip install --no-cache-dir --require-hashes --no-deps -r requirements.txt \
    && /opt/slipstream/bin/pip install --no-cache-dir --no-index -c constraints.txt "$(ls /wheels/*.whl)[operator]" \
    && /opt/slipstream/bin/pip uninstall --yes pip

FROM python:3.12.11-slim-bookworm
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin slipstream
COPY --from=build /opt/slipstream /opt/slipstream
ENV PATH=/opt/slipstream/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8081 9090
HEALTHCHECK --interval=20s --timeout=10s --start-period=60s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8081/healthz', timeout=9)"]
ENTRYPOINT ["slipstream", "operator"]
