# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder: submitted messages are validated and enriched, and what identifies a person is removed.

`streaming` is the daemon, `batch` decodes files, `decoding` is one message; docs/decode.md has the steps.
"""
