# SPDX-License-Identifier: GPL-2.0-or-later
"""The command `vcsreplicator`: one file per verb, loaded when its verb is used.

A verb is a module of this folder with a click command named `command`, or a command of `daemons`; `verbs` lists them. A module
that one verb alone uses begins with its name, `config_rights`, or is in a folder with that name, `setup`. Verbs share the others:
`asking`, `delivering`, `display`, `options`, `own_names`, `progress` and `requests`. This module imports almost nothing, so that
`main` decides what Ctrl-C does before anything else is loaded.
"""

import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` need not be loaded for it
    from typing import NoReturn


def _refuse_without_services(error: ModuleNotFoundError) -> "NoReturn":
    """End the command where only the extensions of Mercurial were installed."""
    if (error.name or "").partition(".")[0] == "hgext":
        raise error
    sys.stderr.write(
        f"vcsreplicator: the package {error.name} is missing; run: pip install 'vcsreplicator[services]'\n"
    )
    sys.exit(78)


def main() -> None:
    """Run the console command; Ctrl-C ends it without a traceback.

    While the command loads, and once its verb has ended, Ctrl-C ends the process at once: nothing has begun, or all is done.
    A signal that was ignored at the start (by `nohup`) stays ignored.
    """
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .own_names import describe_shadow

    if collision := describe_shadow(("pushlog", "notifier")):
        sys.stderr.write(f"vcsreplicator: {collision}\n")
        sys.exit(78)
    try:
        from . import verbs
    except ModuleNotFoundError as error:
        _refuse_without_services(error)

    try:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        verbs.run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a service set its own
            signal.signal(signal.SIGINT, signal.SIG_DFL)
