# SPDX-License-Identifier: GPL-2.0-or-later
"""The log on Kafka, for more than one machine: `adapter` and its parts."""
