# SPDX-License-Identifier: GPL-2.0-or-later
"""The poller: follows json-pushes of hosts that do not run our extensions, and sends their pushes to the queue of hg-push.

settings    the section [poll]                                  asking     one question over HTTP
following   what an answer means for a repository (pure)        hosts      how often a host is asked
state       how far each repository was followed                outgoing   send, be confirmed, then remember
poller      asks each repository in turn
"""
