# SPDX-License-Identifier: GPL-2.0-or-later
# Every service of vcsreplicator, and the `hg` with its extensions:
#   docker build -t vcsreplicator . && docker run vcsreplicator config example
# Images by tags, which their publishers move; docs/install.md says how to give them by digest.
ARG PYTHON_BUILD_IMAGE=python:3.12
ARG PYTHON_IMAGE=python:3.12-slim

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
