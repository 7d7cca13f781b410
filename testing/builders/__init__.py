# SPDX-License-Identifier: GPL-2.0-or-later
"""What tests build: repositories, masters, mirrors, notices, and the other side of each destination."""
