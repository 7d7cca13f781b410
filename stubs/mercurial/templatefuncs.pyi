from typing import Any

funcs: dict[bytes, Any]
