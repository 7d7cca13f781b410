# SPDX-License-Identifier: GPL-2.0-or-later
"""The notifier: publishes the log's notices to destinations.

Each destination gets its messages in order per repository, at least once, and independently of the others.

From the lowest room up: `messages`, `delivery`, `clients`, `services`, `destinations`, `publishing`.
"""
