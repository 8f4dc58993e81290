# syntax=docker/dockerfile:1
# One image for every component: the chart starts each with its own arguments. Built as
#   docker build -t registry.example.com/gputile:0.1.0 .
FROM python:3.11-slim-bookworm AS build
# The wheel carries a C library.
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY requirements/uv.txt requirements/runtime.txt requirements/
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/uv.txt \
 && python -m venv --without-pip /opt/gputile \
 && /opt/build/bin/uv pip install --no-cache --python /opt/gputile/bin/python --require-hashes -r requirements/runtime.txt
COPY . .
# What builds the wheel has the locked version too.
RUN /opt/build/bin/uv pip install --no-cache --python /opt/build/bin/python -c requirements/dev.txt hatchling \
 && /opt/build/bin/python -m hatchling build -t wheel -d /dist \
 && /opt/build/bin/uv pip install --no-cache --python /opt/gputile/bin/python --no-deps /dist/*.whl \
 && /opt/gputile/bin/python -m compileall -q /opt/gputile/lib

FROM python:3.11-slim-bookworm
COPY --from=build /opt/gputile /opt/gputile
ENV PATH=/opt/gputile/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Nobody's number. The agent alone runs as root, as its DaemonSet says: the kubelet's sockets are root's.
USER 65532:65532
ENTRYPOINT ["gputile"]
CMD ["--help"]
