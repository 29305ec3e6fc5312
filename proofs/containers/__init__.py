"""The image and compose.yml, really built and run, without a Docker engine or its registry.

    make image-check      image.py: the image, by itself, against an embedded PostgreSQL
    make compose-check    compose.py: compose.yml as it is, by doing what docs/how-to/containers.md
                          says, and a worker that is stopped in the middle of a job

    engine       buildah and podman with a store of their own, below .containers
    stand_ins    what plays the official images: Debian's Python, PostgreSQL and Prometheus
    docker       what the page's `docker` is: podman and podman-compose

Needs root and Debian's packages, which it installs. What it cannot show: the official images
themselves, a Docker engine, Grafana.
"""
