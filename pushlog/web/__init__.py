# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog in hgweb. A push loads `seam` only, so nothing is imported here."""
