# SPDX-License-Identifier: GPL-2.0-or-later
"""All provocations, by the entry of the runbook."""

from . import brokers, damaging, provoking, speaking, submitting, upgrading
from .provoking import PROVOCATIONS

__all__ = ["PROVOCATIONS", "brokers", "damaging", "provoking", "speaking", "submitting", "upgrading"]
