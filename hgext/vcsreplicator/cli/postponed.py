# SPDX-License-Identifier: GPL-2.0-or-later
"""Stand-ins for modules that are loaded at their first use.

The standard library's `LazyLoader` is no substitute: an import statement loads its modules, and two threads may not use one
at once.
"""

import importlib
import sys
import threading
from types import ModuleType
from typing import Any

_taking = threading.Lock()


class ModuleStandIn(ModuleType):
    """Stands for a module until something in it is used; any thread may use it.

    In `sys.modules` it keeps an import from loading the module. It has attributes of its own as given, and else those of the
    module.
    """

    def __init__(self, name: str, **own: Any) -> None:
        super().__init__(name)
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by import statements
            raise AttributeError(name)
        return getattr(self._load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            super().__setattr__(name, value)
        else:
            setattr(self._load(), name, value)

    def _load(self) -> ModuleType:
        with _taking:  # not while it loads: Python's own locks let other threads wait for that
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


def postpone(*names: str, **own: Any) -> None:
    """Have imports of these modules find stand-ins, unless they are loaded already.

    Their packages are loaded, which have the stand-ins as attributes.
    """
    for name in names:  # all before the first package, which may import them
        sys.modules.setdefault(name, ModuleStandIn(name, **own))
    for name in sorted(names, key=lambda name: name.count(".")):  # inner packages may use what outer ones have
        package, _, module = name.rpartition(".")
        if package:
            vars(importlib.import_module(package)).setdefault(module, sys.modules[name])
