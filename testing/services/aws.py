# SPDX-License-Identifier: GPL-2.0-or-later
"""SNS, S3 and SQS as `moto` serves them on loopback. It keeps all in memory: a restart is an empty account."""

import sys
import urllib.request
from collections.abc import Mapping, Sequence

from testing.services.process import Service


class Aws(Service):
    """One server for all of them; `url` is the `endpoint_url` of boto3. `credentials` are what any client may use."""

    name = "aws"
    credentials: Mapping[str, str] = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-west-2",
    }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]

    def environment(self) -> Mapping[str, str]:
        return self.credentials

    def answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.url}/moto-api/data.json", timeout=2) as answer:
            return bool(answer.status == 200)

    def reset(self) -> None:
        """Forget every topic, bucket and queue."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.open(f"{self.url}/moto-api/reset", data=b"", timeout=10).close()
