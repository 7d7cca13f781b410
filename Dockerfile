# SPDX-License-Identifier: GPL-2.0-or-later
# Every service of vcsreplicator, and the `hg` with its extensions, as the Debian package (docs/debian.md) installs them:
#   docker build -t vcsreplicator . && docker run vcsreplicator config example
# The image by its digest, which no publisher can move; docs/install.md says where it comes from, and how to take another.
ARG DEBIAN_IMAGE=debian:12.12-slim@sha256:d5d3f9c23164ea16f31852f95bd5959aad1c5e854332fe00f7b3a20fcc9f635c

FROM $DEBIAN_IMAGE AS build
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates make python3-venv
WORKDIR /source
COPY . .
RUN make deb

FROM $DEBIAN_IMAGE
COPY --from=build /source/build/deb/*.deb /package/
RUN apt-get update && apt-get install -y --no-install-recommends /package/*.deb && rm -r /package /var/lib/apt/lists/*
RUN useradd --system --create-home hg && install -d -o hg /repos /trial /var/lib/vcsreplicator
ENV PATH=/opt/vcsreplicator/bin:$PATH HGENCODING=UTF-8
USER hg
ENTRYPOINT ["vcsreplicator"]
