# SPDX-License-Identifier: GPL-2.0-or-later
# Every service of vcsreplicator, and the `hg` with its extensions:
#   docker build -t vcsreplicator . && docker run vcsreplicator config example
FROM python:3.12 AS build
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

FROM python:3.12-slim
COPY --from=build /opt/vcsreplicator /opt/vcsreplicator
RUN useradd --system --create-home hg && install -d -o hg /repos /trial /var/lib/vcsreplicator
ENV PATH=/opt/vcsreplicator/bin:$PATH HGENCODING=UTF-8
USER hg
ENTRYPOINT ["vcsreplicator"]
