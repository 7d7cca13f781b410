import struct

COMP_MODE_INLINE: int
FLAG_INLINE_DATA: int
INDEX_ENTRY_V1: struct.Struct
INDEX_HEADER: struct.Struct
KIND_OTHER: int
REVLOGV1: int
