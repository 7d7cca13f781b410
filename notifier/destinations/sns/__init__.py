# SPDX-License-Identifier: GPL-2.0-or-later
"""Amazon SNS, with large messages in S3."""
