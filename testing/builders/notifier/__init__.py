# SPDX-License-Identifier: GPL-2.0-or-later
"""Notifiers, decoders, edges and workers at work, their messages, and the other side of each destination."""
