from collections.abc import Iterable, Sequence

class BufferSegment:
    def tobytes(self) -> bytes: ...

class ZstdDecompressor:
    def multi_decompress_to_buffer(self, frames: Sequence[memoryview]) -> Iterable[BufferSegment]: ...
