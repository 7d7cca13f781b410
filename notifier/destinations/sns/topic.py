# SPDX-License-Identifier: GPL-2.0-or-later
"""Messages of a topic, one or several in a request."""

from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError
from botocore.parsers import create_parser

from hgext.vcsreplicator.words.clock import Clock

from .exchange import HttpAnswer
from .learned import LearnedRequest
from .message import BatchEntry, write_batch, write_form

_BATCH = "PublishBatch"


class TopicPublisher:
    """Publishes to a topic with a client of boto3; for any threads.

    `credentials` are the client's. botocore reads each answer, also that to a request of ours: an entry may have failed.
    """

    def __init__(self, client: Any, arn: str, credentials: Any, clock: Clock) -> None:
        self._client, self._arn = client, arn
        self._shape = client.meta.service_model.operation_model(_BATCH).output_shape
        self._parser = create_parser("query")
        self._request = LearnedRequest(client, f"sns.{_BATCH}", credentials, clock, _is_result)
        client.meta.events.register("before-call.sns", _encode_form)

    def publish(self, entry: BatchEntry) -> Any:
        """Publish a message; return the answer. Raises what boto3 does."""
        return self._client.publish(TopicArn=self._arn, **entry.content)

    def publish_batch(self, entries: Sequence[BatchEntry]) -> Any:
        """Publish messages, whose ids are their places; return the answer.

        Raises what boto3 does.
        """
        answer = self._request.send("/", write_batch(self._arn, entries))
        if answer is not None:
            return self._read_answer(answer)
        requests: list[Any] = [{"Id": str(n), **entry.content} for n, entry in enumerate(entries)]
        return self._client.publish_batch(TopicArn=self._arn, PublishBatchRequestEntries=requests)

    def _read_answer(self, answer: HttpAnswer) -> Any:
        """Return what an answer says; raise ClientError if it is an error."""
        whole = {"status_code": answer.status, "headers": {}, "body": answer.content}
        said = self._parser.parse(whole, self._shape)
        if answer.status >= 300:
            raise ClientError(said, _BATCH)
        return said


def _is_result(answer: HttpAnswer) -> bool:
    """Return whether the topic answered, though entries may have failed."""
    return answer.status == 200 and b"<PublishBatchResult" in answer.content


def _encode_form(params: dict[str, Any], **_: object) -> None:
    """Encode the form of a request.

    botocore would encode it twice: to sign it, and to send it.
    """
    if isinstance(params["body"], dict):
        params["body"] = write_form(params["body"])
