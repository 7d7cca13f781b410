# SPDX-License-Identifier: GPL-2.0-or-later
"""The counterpart of each documented setting of hg.mozilla.org's system.

docs/adopt.md shows it as a table. `[pushlog]`, `[replicationproducer]`, `[replicationpathrewrites]` and `[replication]` stand in
an hgrc, the others in `vcsreplicator.ini` and in the files of its notifiers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

# The accounts that push for others, which are built in there: key → account.
LANDING_ACCOUNTS: Mapping[str, str] = {
    "autolanduser": "bind-autoland@mozilla.com",
    "landingworkeruser": "lando_landing_worker@mozilla.com",
    "landingworkeruser2": "lando_landing_worker_2@mozilla.com",
    "landingworkeruserdev": "lando_landing_worker_dev@mozilla.com",
    "landingworkertry": "lando_landing_worker_try@mozilla.com",
    "landingworkertrydev": "lando_landing_worker_try_dev@mozilla.com",
    "landingworkertrystage": "lando_landing_worker_try_stage@mozilla.com",
    "githgsyncworker": "githgsync_worker@mozilla.com",
    "githgsyncworkerfirefox": "githgsync_worker_firefox@mozilla.com",
    "githgsyncworkerthunderbird": "githgsync_worker_thunderbird@mozilla.com",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterpart:
    """The counterpart of a setting.

    `ours` is its place in our configuration, "" if there is none. `note` says how the setting is converted, or why not. `key` may
    have `*` for any characters. If `is_secret`, the value is never printed.
    """

    section: str
    key: str
    ours: str = ""
    note: str = ""
    is_secret: bool = False


_OWN_NAMES = "the topics have names of their own; `topic-prefix` in the URL of `log` goes before them"
_PROPERTY = "a property of the client, if you need it, goes into the URL of `log` by its name in kafka-python"
_LOG = ("services' file: `log`", "one `log` serves all services; the first value counts")
_NOTIFIER = {
    "hosts": _LOG,
    "client_id connect_timeout": ("", _PROPERTY),
    "topic": ("", _OWN_NAMES),
    "group": ("", "each destination has a position of its own"),
}

# Section → keys → `ours` and `note`.
SECTIONS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "pushlog": {
        " ".join(LANDING_ACCOUNTS): (
            "hgrc: `[pushlog] landingusers`",
            "one list, with the accounts that are built in there",
        ),
        "userprefix remoteuserprefix timeoutro timeoutrw retrydelayms": ("hgrc: `[pushlog]`, the same key", ""),
    },
    "replicationproducer": {
        "hosts": _LOG,
        "acktimeout": ("hgrc: `[vcsreplicator] acknowledge-timeout`", "milliseconds become seconds"),
        "clientid connecttimeout": ("", _PROPERTY),
        "topic": ("", _OWN_NAMES),
        "reqacks": ("", "every record is acknowledged by all in-sync replicas"),
        "partitionmap.*": ("", "the repository's id decides; `topics create --partitions` says how many there are"),
        "syslogident syslogfacility": ("", "services log to standard error, `hg` to its blackbox"),
    },
    "replicationpathrewrites": {
        "*": (
            "hgrc: `[vcsreplicator-roots]`; services' file: `[relay.roots]`",
            "a single prefix is dropped; with several, only the braces are removed",
        ),
    },
    "replication": {
        "unfiltereduser": (
            "hgrc: `[vcsreplicator] snapshot-allow`",
            "who may copy whole repositories, hidden changesets included",
        ),
    },
    "consumer": {
        "hosts": _LOG,
        "group": ("services' file: `[mirror.NAME]`", "the group's name in lower-case letters, digits and hyphens"),
        "backup": ("services' file: `[mirror.NAME] backup`; `roster add NAME --backup`", "no notice waits for it"),
        "topic": ("", _OWN_NAMES),
        "client_id connect_timeout poll_timeout": ("", _PROPERTY),
        "todelete_path": (
            "",
            "what is deleted is kept in `state` of the mirror, on its file system, for `keep-deleted-days`",
        ),
    },
    "programs": {"hg": ("", "a mirror applies in its own process, with the Mercurial of its Python")},
    "path_rewrites": {
        "*": ("services' file: `[mirror.NAME] root`, `paths`", "with several folders, `root` is their common parent"),
    },
    "pull_url_rewrites": {
        "*": ("services' file: `[mirror.NAME] master`", "one URL before all wire paths; the first value counts"),
    },
    "replicationrules": {
        "include.* exclude.*": (
            "`vcsreplicator roster add NAME --include … --exclude …`",
            "rules are in the roster, the same for mirror and aggregator",
        ),
    },
    "aggregator": {
        "hosts": _LOG,
        "monitor_groups_file": (
            "`vcsreplicator roster add NAME`",
            "for each line of that file; the roster says which mirrors notices wait for",
        ),
        "client_id connect_timeout": ("", _PROPERTY),
        "monitor_topic ack_group aggregate_topic": ("", _OWN_NAMES),
    },
    "pulseconsumer": _NOTIFIER,
    "snsconsumer": _NOTIFIER,
    "pulse": {
        "hostname port userid virtual_host ssl": (
            "services' file: `url` of `[notifier.pulse-v1]` and `[notifier.pulse-v2]`",
            'without `ssl` it needs `insecure = ["plain-text"]`',
        ),
        "exchange": ("services' file: `[notifier.pulse-v1] exchange`", ""),
        "exchange2": ("services' file: `[notifier.pulse-v2] exchange`", ""),
        "routing_key_strip_prefix": ("services' file: `routing-key-strip-prefix` of both", ""),
        "password": ("", "write it into /etc/vcsreplicator/pulse.password (mode 0600)"),
        "connect_timeout": ("", "`confirm-timeout` limits each answer of the broker"),
    },
    "awsevents": {
        "region topic_arn bucket s3_endpoint_url sns_endpoint_url": (
            "services' file: `[notifier.sns]`, the same key with hyphens",
            "",
        ),
        "access_key_id secret_access_key": ("", "credentials come as boto3 finds them: environment, file or role"),
    },
    "public_url_rewrites": {"*": ("services' file: `[public.urls]`", "")},
    "ignore_paths": {"*": ("services' file: `[public] ignore`", "")},
}

_SECRETS = frozenset({"password", "access_key_id", "secret_access_key"})

MAPPING = tuple(
    Counterpart(section=section, key=key, ours=ours, note=note, is_secret=key in _SECRETS)
    for section, settings in SECTIONS.items()
    for keys, (ours, note) in settings.items()
    for key in keys.split()
)


def find_counterpart(section: str, key: str) -> Counterpart | None:
    """Return the counterpart of a setting; None if the setting is not documented."""
    return next((each for each in MAPPING if each.section == section and fnmatchcase(key, each.key)), None)
