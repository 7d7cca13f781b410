# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys of mirrors and aggregators, the seals of acks, and signed notices.

`pairs` keeps private keys, agrees on secrets and signs, and alone imports a library for it. `seal` and `signed` are pure.
"""
