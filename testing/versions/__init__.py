# SPDX-License-Identifier: GPL-2.0-or-later
"""The product on other versions of Mercurial, each in an environment of its own."""
