# SPDX-License-Identifier: GPL-2.0-or-later
"""What docs/ has for monitoring: metrics, alert rules, the dashboard and the runbook, against the product and promtool."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase

from hgext.vcsreplicator.aggregator import alarms
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.service import EXIT_CONFIG
from hgext.vcsreplicator.words.records import Reason
from testing.services.cache import CHECKOUT
from tests.house.test_documents import headings

pytestmark = pytest.mark.processes

MONITORING = CHECKOUT / "docs/monitoring"
ALERTS = MONITORING / "alerts.yml"
NAME = re.compile(r"\bvcsreplicator_[a-z_]+")
# Alert → series that make it fire, in promtool's notation of values, one a minute.
FIRING = {
    "VcsreplicatorServiceDown": {'up{job="vcsreplicator",instance="m:1"}': "1+0x5 0+0x90"},
    "VcsreplicatorPushesNotSent": {
        "vcsreplicator_relay_failures_total": "0+10x90",
        "vcsreplicator_relay_unsent_repositories": "1+0x90",
        "vcsreplicator_relay_late_repositories": "0 0 1+0x88",
        "vcsreplicator_relay_forked_repositories": "0+0x90",
        'vcsreplicator_relay_troubles{severity="critical"}': "0 0 1+0x88",
    },
    "VcsreplicatorRepositoryForked": {
        "vcsreplicator_relay_forked_repositories": "1+0x90",
        "vcsreplicator_relay_late_repositories": "0+0x90",
        'vcsreplicator_relay_troubles{severity="critical"}': "1+0x90",
    },
    "VcsreplicatorLogLostRecords": {"vcsreplicator_relay_log_losses_total": "0+0x40 1+0x40"},
    "VcsreplicatorRelayTroubles": {
        'vcsreplicator_relay_troubles{severity="critical"}': "1+0x90",
        "vcsreplicator_relay_forked_repositories": "0+0x90",
        "vcsreplicator_relay_late_repositories": "0+0x90",
    },
    "VcsreplicatorNoticesStalled": {"vcsreplicator_aggregator_stalled_seconds": "0+60x90"},
    "VcsreplicatorAggregatorAlarm": {'vcsreplicator_aggregator_alarms{alarm="events lost"}': "1+0x90"},
    "VcsreplicatorMirrorSilent": {'vcsreplicator_aggregator_mirror_silent_seconds{mirror="alpha"}': "0+60x90"},
    "VcsreplicatorMirrorBehind": {
        'vcsreplicator_aggregator_mirror_lag_events{mirror="alpha"}': "601+0x90",
        'vcsreplicator_aggregator_mirror_silent_seconds{mirror="alpha"}': "6+0x90",
    },
    "VcsreplicatorRepositoryDetached": {"vcsreplicator_mirror_detached_repositories": "1+0x90"},
    "VcsreplicatorMirrorDiffers": {'vcsreplicator_verify_differing_repositories{mirror="alpha"}': "1+0x90"},
    "VcsreplicatorMirrorNotCompared": {'vcsreplicator_verify_unreachable_repositories{mirror="alpha"}': "1+0x90"},
    "VcsreplicatorWorkersFail": {
        "vcsreplicator_mirror_died_workers_total": "0+1x90",
        "vcsreplicator_mirror_hung_workers_total": "0+0x90",
    },
    "VcsreplicatorRecordsRejected": {"vcsreplicator_mirror_rejected_records_total": "0+0x40 1+0x40"},
    "VcsreplicatorDestinationDown": {'vcsreplicator_notifier_down_flag{destination="pulse"}': "1+0x90"},
    "VcsreplicatorDestinationLate": {
        'vcsreplicator_notifier_oldest_age_seconds{destination="pulse"}': "0+60x90",
        'vcsreplicator_notifier_paused_flag{destination="sns"}': "1+0x5 0+0x90",
    },
    "VcsreplicatorBrokerBlocked": {'vcsreplicator_notifier_blocked_flag{destination="pulse"}': "1+0x90"},
    "VcsreplicatorDestinationPaused": {'vcsreplicator_notifier_paused_flag{destination="pulse"}': "1+0x90"},
    "VcsreplicatorMessagesRejected": {
        'vcsreplicator_notifier_rejected_messages_total{destination="pulse"}': "0+0x40 1+0x40"
    },
    "VcsreplicatorMessagesNotRouted": {
        'vcsreplicator_notifier_unroutable_messages_total{destination="pulse"}': "0+0x40 1+0x40"
    },
    "VcsreplicatorWebhooksFail": {
        'vcsreplicator_notifier_subscription_failing_seconds{destination="d",subscription="s"}': "0+60x90"
    },
    "VcsreplicatorEdgeQueues": {"vcsreplicator_edge_queued_bytes": "1+0x90"},
    "VcsreplicatorEdgeSetAside": {"vcsreplicator_edge_damaged_lines_total": "0+0x40 1+0x40"},
    "VcsreplicatorDecodeRejects": {
        'vcsreplicator_decode_rejects_total{error_type="schema"}': "0+6x90",
        "vcsreplicator_decode_messages_total": "0+100x90",
    },
    "VcsreplicatorRepeatsPass": {"vcsreplicator_decode_repeats_away_flag": "1+0x90"},
    "VcsreplicatorPollFails": {"vcsreplicator_poll_failing_repositories": "1+0x90"},
    "VcsreplicatorPolledRepositoryReplaced": {"vcsreplicator_poll_replaced_repositories": "1+0x90"},
    "VcsreplicatorDeadLetters": {"vcsreplicator_work_dead_messages_total": "0+0x40 1+0x40"},
    "VcsreplicatorGuardianLate": {
        "vcsreplicator_guardian_last_round_timestamp_seconds": "0+0x90",
        "vcsreplicator_guardian_active": "1+0x90",
    },
    "VcsreplicatorGuardianMails": {"vcsreplicator_guardian_waiting_reports": "1+0x90"},
    "VcsreplicatorGuardianMailsRefused": {"vcsreplicator_guardian_refused_mails_total": "0+0x40 1+0x40"},
}
# Other series that make an alert fire.
ALSO_FIRING = [
    # Events wait, and no attempt is repeated.
    (
        "VcsreplicatorPushesNotSent",
        {
            "vcsreplicator_relay_late_repositories": "1+0x90",
            "vcsreplicator_relay_forked_repositories": "0+0x90",
            'vcsreplicator_relay_troubles{severity="critical"}': "1+0x90",
        },
    ),
    ("VcsreplicatorLogLostRecords", {"vcsreplicator_relay_log_losses_total": "_x40 1+0x40"}),
    ("VcsreplicatorGuardianMailsRefused", {"vcsreplicator_guardian_lost_reports_total": "0+0x40 1+0x40"}),
]
# A busy installation in which nothing is wrong.
HEALTHY = {
    'up{job="vcsreplicator",instance="m:1"}': "1+0x90",
    "vcsreplicator_relay_failures_total": "0+0x90",
    "vcsreplicator_relay_unsent_repositories": "3+0x90",
    "vcsreplicator_relay_forked_repositories": "0+0x90",
    "vcsreplicator_relay_late_repositories": "0+0x90",
    "vcsreplicator_relay_log_losses_total": "0+0x90",
    'vcsreplicator_relay_troubles{severity="critical"}': "0+0x26 1+0x1 0+0x60",
    'vcsreplicator_relay_troubles{severity="warning"}': "3+0x90",
    "vcsreplicator_aggregator_stalled_seconds": "5+0x90",
    'vcsreplicator_aggregator_alarms{alarm="mirror silent"}': "1+0x90",
    'vcsreplicator_aggregator_mirror_silent_seconds{mirror="alpha"}': "6+0x90",
    'vcsreplicator_aggregator_mirror_lag_events{mirror="alpha"}': "200+0x90",
    'vcsreplicator_aggregator_mirror_lag_events{mirror="inactive"}': "5000+0x90",
    "vcsreplicator_mirror_detached_repositories": "0+0x26 1+0x5 0+0x60",
    'vcsreplicator_verify_differing_repositories{mirror="alpha"}': "0+0x90",
    # What one round could not compare.
    'vcsreplicator_verify_unreachable_repositories{mirror="alpha"}': "0+0x24 2+0x66",
    "vcsreplicator_mirror_died_workers_total": "1+0x90",
    "vcsreplicator_mirror_hung_workers_total": "0+0x90",
    "vcsreplicator_aggregator_errors_total": "1+0x90",
    "vcsreplicator_mirror_rejected_records_total": "1+0x90",
    'vcsreplicator_notifier_down_flag{destination="pulse"}': "0+0x90",
    'vcsreplicator_notifier_oldest_age_seconds{destination="pulse"}': "0+60x40 2+0x50",
    'vcsreplicator_notifier_paused_flag{destination="pulse"}': "1+0x40 0+0x50",
    'vcsreplicator_notifier_subscription_paused_flag{destination="d",subscription="s"}': "1+0x40 0+0x50",
    'vcsreplicator_notifier_blocked_flag{destination="pulse"}': "0+0x90",
    'vcsreplicator_notifier_rejected_messages_total{destination="pulse"}': "1+0x90",
    'vcsreplicator_notifier_unroutable_messages_total{destination="pulse"}': "1+0x90",
    'vcsreplicator_notifier_refused_by_a_queue_messages_total{destination="pulse"}': "0+0x90",
    'vcsreplicator_notifier_subscription_failing_seconds{destination="d",subscription="s"}': "0+60x30 0+0x59",
    "vcsreplicator_edge_queued_bytes": "0+0x26 9+0x5 0+0x60",
    "vcsreplicator_edge_set_aside_messages_total": "0+0x90",
    "vcsreplicator_edge_damaged_lines_total": "0+0x90",
    'vcsreplicator_decode_rejects_total{error_type="schema"}': "0+4x90",
    'vcsreplicator_decode_rejects_total{error_type="repeat"}': "0+50x90",
    "vcsreplicator_decode_messages_total": "0+100x90",
    "vcsreplicator_decode_repeats_away_flag": "0+0x90",
    "vcsreplicator_poll_failing_repositories": "0+0x20 1+0x20 0+0x50",
    "vcsreplicator_poll_replaced_repositories": "0+0x90",
    "vcsreplicator_work_dead_messages_total": "3+0x90",
    "vcsreplicator_guardian_last_round_timestamp_seconds": "0+60x29 0 0 1860+60x57",
    "vcsreplicator_guardian_active": "1+0x90",
    'vcsreplicator_guardian_last_round_timestamp_seconds{instance="standby"}': "0+0x90",
    'vcsreplicator_guardian_active{instance="standby"}': "0+0x90",
    "vcsreplicator_guardian_waiting_reports": "0+0x90",
    "vcsreplicator_guardian_refused_mails_total": "1+0x90",
    "vcsreplicator_guardian_lost_reports_total": "1+0x90",
}


class Described(NamedTuple):
    name: str
    type: str
    documentation: str
    labels: list[str]


def describe(value: object) -> Described | None:
    """What a page says of a value of a module, if it is a metric of the product."""
    if not isinstance(value, MetricWrapperBase):
        return None
    [family] = value.describe()
    labels = list[str]()
    for count in range(1, 4):
        with contextlib.suppress(ValueError):  # it tells its labels only with a value for each
            value.labels(*["x"] * count)
            labels = [name for name in value.collect()[-1].samples[-1].labels if name != "le"]
            value.remove(*["x"] * count)
    if not family.name.startswith("vcsreplicator_"):
        return None
    return Described(family.name, family.type, family.documentation, labels)


@pytest.fixture(scope="module")
def collectors() -> list[Described]:
    """Every metric of the product."""
    for place in ("hgext/vcsreplicator", "notifier"):
        for file in sorted((CHECKOUT / place).rglob("*.py")):
            if "prometheus_client" in file.read_text():
                importlib.import_module(
                    ".".join(file.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")
                )
    modules = [each for name, each in sys.modules.items() if name.startswith(("hgext.vcsreplicator.", "notifier."))]
    values = {id(each): each for module in modules for each in vars(module).values()}
    found = {each.name: each for each in map(describe, values.values()) if each is not None}
    assert found.keys() >= {each.name for each in REGISTRY.collect() if each.name.startswith("vcsreplicator_")}
    return list(found.values())


def rows(collectors: list[Described]) -> dict[str, str]:
    """The line of the page for each metric, by its name as Prometheus stores it."""
    found = {}
    for each in collectors:
        name = f"{each.name}_total" if each.type == "counter" else each.name
        labels = ", ".join(f"`{label}`" for label in each.labels)
        found[name] = f"| `{name}` | {each.type} | {labels} | {each.documentation} |"
    return found


def rules() -> list[dict[str, Any]]:
    """All alert rules."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """All panels of the dashboard that show series."""
    return [panel for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"] if "targets" in panel]


def promtool(*arguments: object) -> str:
    """Run it, and give what it prints; it must succeed."""
    environment = {**os.environ, "GOGC": "800"}  # a quarter of its time is looking for garbage otherwise
    words = ["promtool", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_lists_every_metric(collectors: list[Described]) -> None:
    written = [line for line in (CHECKOUT / "docs/monitoring.md").read_text().splitlines() if line.startswith("| `vcs")]
    expected = rows(collectors).values()
    assert "\n".join(sorted(set(expected) - set(written))) == "", "these lines are missing"
    assert "\n".join(sorted(set(written) - set(expected))) == "", "these lines are too many"
    assert len(written) == len(set(written))


def test_the_pages_rule_finds_an_aggregator_that_no_mirror_heard(tmp_path: Path) -> None:
    beat, applied = (
        "vcsreplicator_mirror_aggregator_beat_timestamp_seconds",
        "vcsreplicator_mirror_applied_events_total",
    )
    page = (CHECKOUT / "docs/monitoring.md").read_text()
    [rule] = re.findall(rf"`(time\(\) - {beat} [^`]*)`", page)
    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "site", "rules": [{"alert": "Unheard", "expr": rule}]}]})
    )
    series = {
        f'{applied}{{instance="never"}}': "0x10",
        f'{applied}{{instance="heard"}}': "0x10",
        f'{beat}{{instance="heard"}}': "0+60x10",
        f'{applied}{{instance="once"}}': "0x10",
        f'{beat}{{instance="once"}}': "0x10",
    }
    firing = [{"exp_labels": {"instance": name}} for name in ("never", "once")]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "5m", "alertname": "Unheard", "exp_alerts": firing}],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    promtool("test", "rules", tmp_path / "test.yml")


def test_names_of_metrics_follow_the_conventions(collectors: list[Described]) -> None:
    lines = "".join(
        f"# HELP {name} {each.documentation}\n# TYPE {name} {each.type}\n{name} 0\n"
        for each in collectors
        if each.type != "histogram"
        for name in [f"{each.name}_total" if each.type == "counter" else each.name]
    )
    done = subprocess.run(["promtool", "check", "metrics"], input=lines, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_rules_and_panels_use_only_metrics_that_exist(collectors: list[Described]) -> None:
    parts = ("", "_bucket", "_sum", "_count")
    known = {name + part for name in rows(collectors) for part in parts}
    used = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    shown = {name for panel in panels() for target in panel["targets"] for name in NAME.findall(target["expr"])}
    assert used
    assert shown
    assert (used | shown) - known == set()


def test_the_panels_stand_beside_each_other_as_grafana_places_them() -> None:
    """Grafana moves what overlaps, and takes one of two panels with the same number for the other."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    [source] = dashboard["templating"]["list"]
    taken: dict[tuple[int, int], str] = {}
    for number, panel in enumerate(dashboard["panels"], 1):
        place = panel["gridPos"]
        cells = [
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert {(panel["title"], taken.setdefault(cell, panel["title"])) for cell in cells} == {(panel["title"],) * 2}
        assert (panel["id"], place["x"] + place["w"] <= 24) == (number, True)
        assert panel["type"] == "row" or panel["datasource"]["uid"] == f"${{{source['name']}}}"


def test_each_service_has_a_panel(collectors: list[Described]) -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    services = {name.split("_")[1] for name in rows(collectors)}
    assert {"verify", "edge", "poll", "work", "guardian"} <= services
    assert [service for service in sorted(services) if f"vcsreplicator_{service}_" not in shown] == []


def test_promtool_understands_rules_configuration_and_panels(tmp_path: Path) -> None:
    promtool("check", "config", MONITORING / "prometheus.yml")
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    shown = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": shown}]}))
    assert f"{len(shown)} rules found" in promtool("check", "rules", tmp_path / "panels.yml")


def test_prometheus_scrapes_every_service_at_an_address_it_reaches() -> None:
    page = (CHECKOUT / "docs/by-hand.md").read_text()
    blocks = map(tomllib.loads, re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    [listening] = [block["listen"].values() for block in blocks if "relay" in block["listen"]]
    [job] = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    [targets] = [each["targets"] for each in job["static_configs"]]
    assert {where.partition(":")[0] for where in listening} == {"0.0.0.0"}
    assert {where.partition(":")[2] for where in listening} == {where.partition(":")[2] for where in targets}


def test_prometheus_has_a_place_for_services_that_check_passes_over() -> None:
    named = set(re.findall(r"# - (\w+)\.example:\d+$", (MONITORING / "prometheus.yml").read_text(), re.MULTILINE))
    verbs = CHECKOUT / "hgext/vcsreplicator/cli"
    role = re.compile(r"""(?:run_daemon\(config, |listen\()"(\w+)\"""")
    roles = {name for file in verbs.glob("*.py") for name in role.findall(file.read_text())}
    assert "edge" in roles
    assert named == roles - {"aggregator", "notifier", "relay", "verify"}, "those are there already"


def test_each_alert_fires_alone_when_it_should_and_none_while_all_is_well(tmp_path: Path) -> None:
    by_name = {rule["alert"]: rule for rule in rules()}
    assert by_name.keys() == FIRING.keys()
    unused = {name for rule in by_name.values() for name in NAME.findall(rule["expr"])} - {
        name for series in HEALTHY for name in NAME.findall(series)
    }
    assert not unused, "the healthy installation has these metrics too"
    asked = [{"eval_time": time, "alertname": name} for name in by_name for time in ("30m", "85m")]
    tests: list[dict[str, Any]] = [{**_series(HEALTHY), "alert_rule_test": asked}]
    for name, series in [*FIRING.items(), *ALSO_FIRING]:
        firing = {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})', "eval_time": "75m"}
        any_firing = {"expr": 'count(ALERTS{alertstate="firing"})', "eval_time": "75m"}
        queries = [{**query, "exp_samples": [_ONE]} for query in (firing, any_firing)]
        tests.append({**_series(series), "promql_expr_test": queries})
    suite = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "suite.yml").write_text(json.dumps(suite))
    promtool("test", "rules", tmp_path / "suite.yml")


_ONE = {"labels": "{}", "value": 1}


def _series(values: dict[str, str]) -> dict[str, Any]:
    return {"interval": "1m", "input_series": [{"series": name, "values": value} for name, value in values.items()]}


def runbook() -> str:
    return (CHECKOUT / "docs/runbook.md").read_text()


def test_the_runbook_has_an_entry_for_each_alert_alarm_and_exit_code() -> None:
    text = runbook()
    for rule in rules():
        page, _, heading = rule["annotations"]["runbook_url"].partition("#")
        assert page == "https://docs.example/docs/runbook.html", (
            "an absolute URL, which docs/monitoring.md has replaced"
        )
        assert heading == rule["alert"].lower()
        assert heading in headings(text)
    entries = re.findall(r"^### (\w+)$(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in entries] == [rule["alert"] for rule in rules()]
    # A copy is made for this reason; nothing is detached for it.
    for reason in set(Reason) - {Reason.BOOTSTRAP}:
        assert f"\n| `{reason.value}` | " in text
    kinds = {value for name, value in vars(alarms).items() if name.isupper() and isinstance(value, str)}
    for kind in kinds - {alarms.SILENT, alarms.OLDER_STEP, alarms.MIRROR_FORMAT}:
        assert f"\n| `{kind}` | " in text
    for code in (0, 1, EXIT_CONFIG):
        assert f"\n| {code} | " in text


@pytest.mark.parametrize("entry", re.findall(r"^### (\w+)$", runbook(), re.MULTILINE))
def test_an_entry_says_what_it_means_where_to_look_and_what_to_do(entry: str) -> None:
    [text] = re.findall(rf"^### {entry}$(.*?)(?=^##)", runbook(), re.MULTILINE | re.DOTALL)
    needed = {"Look", "Over"} if "| alarm |" in text else {"Means", "Look", "Do", "Over"}
    assert set(re.findall(r"^- \*\*(\w+):\*\*", text, re.MULTILINE)) == needed


def typed(text: str) -> list[list[str]]:
    """Each of our commands in code spans of a page."""
    return [span.split() for span in sorted(set(re.findall(r"`vcsreplicator ([a-z][^`]*)`", text)))]


@pytest.mark.parametrize("command", typed(runbook()), ids=" ".join)
def test_a_command_of_the_runbook_exists(command: list[str]) -> None:
    context = click.Context(program, info_name="vcsreplicator")
    at: click.Command = program
    words = list(command)
    while isinstance(at, click.Group) and words:
        found = at.get_command(context, words[0])
        if found is None:
            break
        at, words = found, words[1:]
    assert at is not program, f"no such command: {command[0]}"
    options = {name for parameter in at.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options
    places = sum(isinstance(parameter, click.Argument) for parameter in at.params)
    assert places or not [word for word in words if not word.startswith("-") and word == word.lower() and word != "yes"]
