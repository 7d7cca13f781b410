# SPDX-License-Identifier: GPL-2.0-or-later
"""The signature is that of the example in Amazon's manual."""

import datetime

import pytest
from botocore.credentials import ReadOnlyCredentials

from notifier.destinations.sns.signature import SignatureScope, signed_headers

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SCOPE = SignatureScope(region="us-east-1", service="s3")


def test_object_of_the_manual_is_signed_as_there() -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html, example PUT Object."""
    found = signed_headers(
        "PUT",
        "https://examplebucket.s3.amazonaws.com/test%24file.text",
        "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
        {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY", "User-Agent": "any"},
        SCOPE,
        ReadOnlyCredentials("AKIAIOSFODNN7EXAMPLE", SECRET, None),
        datetime.datetime(2013, 5, 24, tzinfo=datetime.UTC).timestamp(),
    )
    assert found["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class, "
        "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    )
    assert SignatureScope.of(found["Authorization"]) == SCOPE
    assert found["User-Agent"] == "any"


def sign(secret: str = SECRET, *, day: int = 24, region: str = "us-east-1") -> str:
    """Sign the same request with these, and return the signature."""
    now = datetime.datetime(2013, 5, day, tzinfo=datetime.UTC).timestamp()
    scope = SignatureScope(region=region, service="s3")
    found = signed_headers("PUT", "https://b/k", "1" * 64, {}, scope, ReadOnlyCredentials("key", secret, None), now)
    return found["Authorization"].partition("Signature=")[2]


def test_secret_day_and_region_each_change_the_signature() -> None:
    signatures = [sign(), sign("other"), sign(day=25), sign(region="eu-west-3")]
    assert len(set(signatures)) == 4
    assert sign() == signatures[0]


@pytest.mark.parametrize("other", ["AWS4-ECDSA-P256-SHA256 Credential=a/20130524/s3/aws4_request, ", "AWS a:b", ""])
def test_another_signature_has_no_scope(other: str) -> None:
    assert SignatureScope.of(other) is None
