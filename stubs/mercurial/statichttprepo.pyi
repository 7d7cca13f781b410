from typing import Any

statichttprepository: Any
