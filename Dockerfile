# SPDX-License-Identifier: GPL-2.0-or-later
# Every service of vcsreplicator, and the `hg` with its extensions:
#   docker build -t vcsreplicator . && docker run vcsreplicator config example
# Images by digest, which no publisher can move; docs/install.md says where the digests come from, and how to take others.
ARG PYTHON_BUILD_IMAGE=python:3.12.13-bookworm@sha256:3cd9086bdb30f7c9bc08a3fa621d9842e0d3f6f9291aeb4677e0547817c10b12
ARG PYTHON_IMAGE=python:3.12.13-slim-bookworm@sha256:4766d8b510c428e595d74b9cc5bbb2fae8e26316fffb4adc89908d79aacd58a2

FROM $PYTHON_BUILD_IMAGE AS build
RUN python -m venv /opt/vcsreplicator
WORKDIR /source
COPY requirements/services.txt requirements/
RUN /opt/vcsreplicator/bin/pip install --require-hashes -r requirements/services.txt
COPY pyproject.toml setup.py README.md COPYING ./
COPY hgext hgext
COPY pushlog pushlog
COPY hooks hooks
COPY notifier notifier
RUN /opt/vcsreplicator/bin/pip install --no-deps --no-build-isolation .

FROM $PYTHON_IMAGE
COPY --from=build /opt/vcsreplicator /opt/vcsreplicator
RUN useradd --system --create-home hg && install -d -o hg /repos /trial /var/lib/vcsreplicator
ENV PATH=/opt/vcsreplicator/bin:$PATH HGENCODING=UTF-8
USER hg
ENTRYPOINT ["vcsreplicator"]
