# SPDX-License-Identifier: GPL-2.0-or-later
"""Prepares a local installation: files, topics, mirrors in the roster, SNS."""

import os
import time
from pathlib import Path

from ..log import ROSTER_REQUESTS, Log, NewRecord, topics
from ..log.opening import open_log
from ..mirror.namesake import instance_of
from ..mirror.settings import MirrorSettings
from ..words.errors import BadConfig, Unavailable
from ..words.roster import RosterRequest, Verb
from ..words.shape import to_json
from .layout import BUCKET, REGION, DemoOptions, Layout, write_files


def prepare(options: DemoOptions) -> Layout:
    """Prepare everything and start nothing; may be repeated in the same folder."""
    topic_arn = _create_topic_and_bucket(options.sns_endpoint) if options.sns_endpoint else None
    layout = write_files(options, topic_arn=topic_arn)
    for name, root in layout.mirrors.items():
        # Lets the mirror fill its root, as `bootstrap` does: the log may be an earlier demo's, with acks of a mirror of this name.
        folder = Path(MirrorSettings(name=name, root=str(root)).folder)
        folder.mkdir(exist_ok=True)
        instance_of(folder)
    with open_log(layout.log, creates=True) as log:
        log.create(topics())
        _add_mirrors(log, list(layout.mirrors))
    return layout


def _add_mirrors(log: Log, names: list[str]) -> None:
    """Ask the aggregator to add each mirror; a repeated request changes nothing."""
    requests = [
        RosterRequest(id=f"demo-{name}", verb=Verb.ADD, mirror=name, who="demo", time=time.time(), reason="demo")
        for name in names
    ]
    log.append([NewRecord(topic=ROSTER_REQUESTS, key=request.id, value=to_json(request)) for request in requests])


def _create_topic_and_bucket(endpoint: str) -> str:
    """Create the topic and the bucket; return the ARN of the topic.

    Raises BadConfig if the endpoint is no URL, Unavailable if it does not answer or refuses.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        os.environ.setdefault(name, "demo")
    try:
        sns = boto3.client("sns", endpoint_url=endpoint, region_name=REGION)
        s3 = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
        arn: str = sns.create_topic(Name="hg-events")["TopicArn"]
        s3.create_bucket(Bucket=BUCKET)
    except ValueError as error:
        raise BadConfig(f"--sns-endpoint: expected the URL of SNS and S3: {error}") from error
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(f"--sns-endpoint: {endpoint}: {error}") from error
    return arn
