# SPDX-License-Identifier: GPL-2.0-or-later
"""What messages say. Pure.

Notices in public form, pushes of hg-push, and submissions; `schemas/` has a JSON Schema for each type.
"""
