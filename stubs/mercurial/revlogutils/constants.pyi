import struct

COMP_MODE_INLINE: int
INDEX_ENTRY_V1: struct.Struct
KIND_OTHER: int
