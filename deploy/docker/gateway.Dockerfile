# The gateway, and the commands without further requirements (kill, unkill, route): no torch, no Triton, no GPU.
#
#   docker build -f deploy/docker/gateway.Dockerfile -t slipstream-gateway:0.3.0 .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8080:8080 -v ./pair.yaml:/etc/slipstream/pair.yaml:ro \
#       slipstream-gateway:0.3.0 --manifest /etc/slipstream/pair.yaml --allow-anonymous
#
# For other machines: --keys FILE instead. Without either option it refuses to start.
#
# With `--build-arg CAPTURE=yes -t slipstream-gateway:0.3.0-capture` it also has what --capture-store needs.
FROM debian:12.11-slim AS python
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin slipstream

FROM python AS build
WORKDIR /src
COPY constraints.txt requirements/gateway.txt ./
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev python3-venv \
    && python3 -m venv --without-pip /opt/slipstream && python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir -c constraints.txt build hatchling msgspec mypy numpy setuptools
# With a date, compiled Python names its source by a hash: two builds are equal.
ENV PIP_PYTHON=/opt/slipstream/bin/python SOURCE_DATE_EPOCH=0
# Dependencies with hashes first; then our own wheel, without downloads.
RUN /build/bin/pip install --no-cache-dir --require-hashes --no-deps -r gateway.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY gateway gateway
COPY operator operator
COPY kernels kernels
COPY deploy/model_repository deploy/model_repository
# With compiled code: see hatch_build.py.
RUN SLIPSTREAM_COMPILE=1 /build/bin/python -m build --wheel --no-isolation --outdir /wheels \
    && /build/bin/pip install --no-cache-dir --no-index -c constraints.txt "$(ls /wheels/*.whl)[gateway,redis,kubernetes]"

COPY requirements/drafts.txt ./
ARG CAPTURE=
RUN test -z "$CAPTURE" || /build/bin/pip install --no-cache-dir --require-hashes --no-deps -r drafts.txt

FROM python
COPY --from=build /opt/slipstream /opt/slipstream
ENV PATH=/opt/slipstream/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health/live', timeout=2)"]
ENTRYPOINT ["slipstream", "gateway", "--host", "::"]
CMD ["--manifest", "/etc/slipstream/pair.yaml"]
