# The operator: kopf, the Kubernetes client and Redis, without serving dependencies.
#
#   docker build -f deploy/docker/operator.Dockerfile -t slipstream-operator:0.3.0 .
FROM debian:12.11-slim AS python
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin slipstream

FROM python AS build
WORKDIR /src
COPY constraints.txt requirements/operator.txt ./
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv \
    && python3 -m venv --without-pip /opt/slipstream && python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir -c constraints.txt build hatchling
# With a date, compiled Python names its source by a hash: two builds are equal.
ENV PIP_PYTHON=/opt/slipstream/bin/python SOURCE_DATE_EPOCH=0
# Dependencies with hashes first; then our own wheel, without downloads.
RUN /build/bin/pip install --no-cache-dir --require-hashes --no-deps -r operator.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY gateway gateway
COPY operator operator
COPY kernels kernels
COPY deploy/model_repository deploy/model_repository
RUN /build/bin/python -m build --wheel --no-isolation --outdir /wheels \
    && /build/bin/pip install --no-cache-dir --no-index -c constraints.txt "$(ls /wheels/*.whl)[operator]"

FROM python
COPY --from=build /opt/slipstream /opt/slipstream
ENV PATH=/opt/slipstream/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8081 9090
HEALTHCHECK --interval=20s --timeout=10s --start-period=60s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8081/healthz', timeout=9)"]
ENTRYPOINT ["slipstream", "operator"]
