# SPDX-License-Identifier: GPL-2.0-or-later
"""What GitLab's web application would ask HGitaly: a client of gRPC, run by Heptapod's Python.

    python calls.py ADDRESS

Each line on standard input is a JSON list: the full name of a method, and its requests (one, or more where it takes a stream;
bytes are in base64). Each line on standard output answers: a list of responses, or a text with the status and the reason.
"""

import json
import sys
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from hgitaly.stub import mercurial_operations_pb2, mercurial_repository_pb2, operations_pb2, repository_pb2

# Its import makes the methods known.
KNOWN = (mercurial_operations_pb2, mercurial_repository_pb2, operations_pb2, repository_pb2)
# What Heptapod's application says with each change: no Git beside Mercurial, and a user who may publish.
METADATA = (("x-heptapod-hg-native", "true"), ("x-heptapod-perm", "publish"))


def call(channel: grpc.Channel, name: str, requests: list[Any]) -> list[Any]:
    """Call the method and return all of its responses; raises `grpc.RpcError`."""
    service, _, method = name.rpartition(".")
    about = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
    takes, gives = (message_factory.GetMessageClass(each) for each in (about.input_type, about.output_type))
    kind = f"{'stream' if about.client_streaming else 'unary'}_{'stream' if about.server_streaming else 'unary'}"
    ask = getattr(channel, kind)(f"/{service}/{method}", takes.SerializeToString, gives.FromString)
    messages = [json_format.ParseDict(request, takes()) for request in requests]
    asked = iter(messages) if about.client_streaming else messages[0]
    answer = ask(asked, metadata=METADATA, timeout=60, wait_for_ready=True)
    return [json_format.MessageToDict(each) for each in (answer if about.server_streaming else [answer])]


def main() -> None:
    """Answer line by line until standard input ends."""
    with grpc.insecure_channel(sys.argv[1]) as channel:
        for line in sys.stdin:
            try:
                said: object = call(channel, *json.loads(line))
            except grpc.RpcError as error:
                said = f"{error.code().name}: {error.details()}"
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
