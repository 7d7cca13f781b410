# SPDX-License-Identifier: GPL-2.0-or-later
"""The edge: an HTTP server that takes submissions, and answers 200 once each is durable in the log or on disk."""
