# SPDX-License-Identifier: GPL-2.0-or-later
"""The edge: takes submissions, and answers 200 once they are durable."""
