# syntax=docker/dockerfile:1
# The image of `make image`, for whoever builds with a registry at hand: the same files, made by the same steps.
#   docker build -t registry.example.com/gputile:0.2.0 --build-arg REVISION=$(git rev-parse HEAD) .
FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends binutils ca-certificates gcc libc6-dev mmdebstrap python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY requirements/uv.txt requirements/dev.txt requirements/
# What builds the wheel has the locked version too.
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/uv.txt \
 && /opt/build/bin/uv pip install --no-cache --python /opt/build/bin/python -c requirements/dev.txt hatchling
COPY . .
ARG SOURCE_DATE_EPOCH=0
RUN /opt/build/bin/python -m release.root_filesystem /image

FROM scratch
ARG REVISION=
COPY --from=build /image/debian/ /
COPY --from=build /image/wheels/ /
COPY --from=build /image/gputile/ /
ENV PATH=/opt/gputile/bin:/usr/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
LABEL org.opencontainers.image.title="gputile" \
      org.opencontainers.image.description="Sharing the GPUs of a Kubernetes cluster" \
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="$REVISION"
# Nobody's number. The agent alone runs as root, as its DaemonSet says: the kubelet's sockets are root's.
USER 65532:65532
ENTRYPOINT ["gputile"]
CMD ["--help"]
