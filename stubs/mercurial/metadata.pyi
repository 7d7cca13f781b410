from collections.abc import Iterable

class ChangingFiles:
    def __init__(self, touched: Iterable[bytes] | None = None, added: Iterable[bytes] | None = None) -> None: ...
