# SPDX-License-Identifier: GPL-2.0-or-later
"""The user that runs this program."""

import getpass
import os


def name_user() -> str:
    """Return the user's name; `uid NUMBER` if the system does not know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the second one since Python 3.13
        return f"uid {os.getuid()}"
