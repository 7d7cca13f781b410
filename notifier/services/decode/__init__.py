# SPDX-License-Identifier: GPL-2.0-or-later
"""The decoder of submitted messages.

It validates and enriches each message, and removes what identifies a person. `streaming` is the daemon, `batch` decodes files,
`decoding` decodes one message; docs/documents.md lists the steps.
"""
