# SPDX-License-Identifier: GPL-2.0-or-later
"""An aggregator fed by hand or run as a process, and the events and states it works on."""
