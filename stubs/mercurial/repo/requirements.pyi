BASE_SUPPORTED: set[bytes]
