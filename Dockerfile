# One image for every part of Faultline; the command says which:
#
#     docker build -t faultline .
#     docker run faultline migrate | api | worker | reconcile | inspector serve
#
# docs/how-to/containers.md says how your own code gets into a worker. `make image-check` builds
# this file and runs what comes out.
ARG PYTHON=3.13-slim-trixie

FROM docker.io/library/python:${PYTHON} AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE THIRD-PARTY-NOTICES.md ./
COPY src src
# A mirror, or a certificate of your own: docker build --secret id=pip,src=pip.conf (and it stays
# out of the image). The environment has no pip; that of the base fills it.
# What is installed is this directory, at its own version, and the cache is no part of the layer.
# hadolint ignore=DL3013,DL3042
RUN --mount=type=cache,target=/var/cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv --without-pip /opt/faultline \
 && pip --python /opt/faultline/bin/python --cache-dir /var/cache/pip install '.[metrics,web]'

FROM docker.io/library/python:${PYTHON}
# By its number, so that Kubernetes can see that it is not root.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp faultline
COPY --from=build /opt/faultline /opt/faultline
COPY --chmod=0644 deploy/image/health.py /opt/faultline/health.py
# PIP_PYTHON: `pip install` in an image that is built on this one goes where faultline is.
# The root may be read only, so no bytecode is written; what pip installs is compiled already.
ENV PATH=/opt/faultline/bin:$PATH \
    PIP_PYTHON=/opt/faultline/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
EXPOSE 8000 8001 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=15s --retries=3 \
    CMD ["python", "-I", "/opt/faultline/health.py"]
# The list form: the signal to stop reaches faultline itself, which drains.
ENTRYPOINT ["faultline"]
CMD ["--help"]
# `make image` says the version, which is in src/faultline/__init__.py.
ARG VERSION=unreleased
LABEL org.opencontainers.image.title="faultline" \
      org.opencontainers.image.description="A crash-safe distributed job queue for Python on PostgreSQL" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
