from collections.abc import Callable

statichttprepository: Callable[..., object]
