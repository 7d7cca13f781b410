# SPDX-License-Identifier: GPL-2.0-or-later
"""The edge: an HTTP server that takes submissions.

It answers 200 once a submission is durable in the log or on disk.
"""
