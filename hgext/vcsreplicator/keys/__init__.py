# SPDX-License-Identifier: GPL-2.0-or-later
"""Keys of mirrors and aggregators, and the seals of acks.

`pairs` keeps private keys and agrees on secrets, and alone imports a library for it. `seal` is pure.
"""
