# SPDX-License-Identifier: GPL-2.0-or-later
"""The pushlog in hgweb.

Most processes load `seam` alone, so nothing is imported here.
"""
