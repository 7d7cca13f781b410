# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients of brokers, HTTP servers, databases and files.

Also the secrets and certificate authorities that they need.
"""
