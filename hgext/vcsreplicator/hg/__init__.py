# SPDX-License-Identifier: GPL-2.0-or-later
"""The border to Mercurial: one file per seam; bytes end here."""
