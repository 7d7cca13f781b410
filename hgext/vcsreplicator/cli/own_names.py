# SPDX-License-Identifier: GPL-2.0-or-later
"""The short names of our packages, which other software may have too.

Only what Python has loaded anyway is imported, because each start of the command asks here.
"""

import importlib.util
import os
from collections.abc import Iterable

_INSTALLED = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
_ADVICE = "install vcsreplicator in an environment of its own, without PYTHONPATH"


def describe_shadow(names: Iterable[str]) -> str | None:
    """Say which of our packages Python finds elsewhere; None if it finds all of ours."""
    for name in names:
        spec = importlib.util.find_spec(name)
        found = "none" if spec is None else spec.origin or "a folder without __init__.py"
        if os.path.realpath(found) != os.path.realpath(os.path.join(_INSTALLED, name, "__init__.py")):
            return f"package {name}: expected that in {_INSTALLED}, Python finds {found}; {_ADVICE}"
    return None


def describe_overlay(names: Iterable[str]) -> str | None:
    """Name another distribution that put files into a package of ours, or None."""
    import importlib.metadata  # a tenth of a second, with all that is installed

    owners = importlib.metadata.packages_distributions()
    for name in names:
        if others := sorted(set(owners.get(name, ())) - {"vcsreplicator"}):
            return f"package {name}: {', '.join(others)} installs files in it, too; {_ADVICE}"
    return None
