from collections.abc import MutableMapping

environ: MutableMapping[bytes, bytes]
encoding: bytes

def tolocal(s: bytes) -> bytes: ...
def fromlocal(s: bytes) -> bytes: ...
