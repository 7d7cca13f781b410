from collections.abc import Callable
from typing import Any

handlerfuncs: list[Callable[[Any, Any], Any]]
