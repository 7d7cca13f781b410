subsettable: dict[bytes | None, bytes]
