# SPDX-License-Identifier: GPL-2.0-or-later
"""Changes the code that decides, a little at a time, and names each change that its nearest tests do not notice."""
