# SPDX-License-Identifier: GPL-2.0-or-later
"""An edge and a decoder on this machine, and a document to submit to them."""

import time
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path

from ..log import topics
from ..log.opening import open_log
from .layout import PROGRAM, DemoOptions, Service, environment, quote, write_own
from .ports import free_port

# A changeset as `eng-workflow/hgpush/1` describes it.
DOCUMENT = """\
{
  "changesetID": "2c3a0767d84a4d028a92fa54a3376049aabbccdd",
  "repository": "https://hg.example/hello",
  "reviewSystemUsed": "phabricator",
  "pushDate": 1795442400,
  "landingSystem": "lando",
  "diffstat": {"additions": 12, "deletions": 3, "changedFiles": 2}
}
"""
HEADERS = {"User-Agent": "mercurial/proto-1.0 (Mercurial 7.2)", "X-Forwarded-For": "198.51.100.7"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionLayout:
    """A prepared edge and decoder; `output` is the file of decoded documents."""

    url: str
    output: Path
    services: tuple[Service, ...]


def prepare_submission(options: DemoOptions) -> SubmissionLayout:
    """Write the files and create the topics; start nothing."""
    folder = options.folder.resolve()
    for part in ("output", "run", "decoded"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = options.log or f"sqlite:///{str(folder / 'log.db').lstrip('/')}"
    config = folder / "vcsreplicator.toml"
    # Nothing is reserved, because no notifier writes to this decoder.
    write_own(
        config,
        f"insecure = {list(options.insecure)}\nlog = {quote(log)}\n\n"
        f'[edge]\nlisten = "127.0.0.1:{port}"\nqueue = "{folder}/queue"\nreserved = []\n\n'
        f'[decode]\noutput = "file:{folder}/decoded/"\nrepeats = "{folder}/repeats.db"\n',
    )
    with open_log(log, creates=True) as opened:
        opened.create(topics())
    services = [
        Service(role=role, argv=(*PROGRAM, role, "--config", str(config)), env=environment(folder, "none"))
        for role in ("edge", "decode")
    ]
    return SubmissionLayout(
        url=f"http://127.0.0.1:{port}/submit/eng-workflow/hgpush/1/",
        output=folder / "decoded" / "eng-workflow.hgpush.ndjson",
        services=tuple(services),
    )


def submit(layout: SubmissionLayout) -> tuple[float, float, int]:
    """Submit the document with a new id, and return the times and the status.

    The times are when it was sent and when it was answered, in seconds since the epoch. Raises OSError.
    """
    request = urllib.request.Request(f"{layout.url}{uuid.uuid4()}", DOCUMENT.encode(), HEADERS, method="POST")
    sent = time.time()
    with urllib.request.urlopen(request, timeout=30) as answer:
        return sent, time.time(), answer.status
