# SPDX-License-Identifier: GPL-2.0-or-later
"""The rights on Kafka that `docs/log.md` gives to each service's user: they suffice, and others are refused."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from hgext.vcsreplicator.aggregator.offline_roster import check_silence, decide_offline
from hgext.vcsreplicator.demo.layout import PROGRAM
from hgext.vcsreplicator.demo.ports import free_port
from hgext.vcsreplicator.demo.submission import DOCUMENT
from hgext.vcsreplicator.log import (
    ACKS,
    ERRORS,
    EVENTS,
    NOTICES,
    ROSTER,
    ROSTER_REQUESTS,
    WATCHES,
    Log,
    NewRecord,
    topics,
)
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.log.table import find_beginnings, read_records
from hgext.vcsreplicator.relay.mastership import claim, read_master
from hgext.vcsreplicator.status.follower import Follower
from hgext.vcsreplicator.words.clock import SystemClock
from hgext.vcsreplicator.words.errors import ReplicationError
from hgext.vcsreplicator.words.records import DECODE_GROUP, MasterRecord
from hgext.vcsreplicator.words.roster import RosterRequest, Verb
from notifier.messages.raw import raw_topic
from notifier.services.guardian.state import open_state as open_guardian_state
from notifier.services.poll.settings import PollSettings
from notifier.services.poll.state import open_state as open_poll_state
from testing.builders.certificates import certificate
from testing.builders.cluster import Cluster
from testing.builders.master.pushhost import PushHost
from testing.services.cache import CHECKOUT
from testing.services.kafka import Kafka
from testing.waiting import eventually
from tests.notifier.services.guardian.conftest import some_settings

pytestmark = [pytest.mark.processes, pytest.mark.services, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "log.md"
USERS = (
    "relay",
    "mirror",
    "verify",
    "aggregator",
    "notifier",
    "guardian",
    "poller",
    "operator",
    "edge",
    "decoder",
    "promoter",
    "offline",
)
REFUSED = re.compile("not authorized|hidden from this user")
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
MECHANISM = "SCRAM-SHA-256"


class StrictKafka(Kafka):
    """Has a second way in, with TLS, by name and password, where everything is forbidden that no ACL allows."""

    def __init__(self) -> None:
        super().__init__()
        self.guarded_port = free_port()
        self.certificate = certificate(self.folder, "broker", "IP:127.0.0.1")
        self._store = self.folder / "store.pem"
        self._store.write_text(self.certificate.with_suffix(".key").read_text() + self.certificate.read_text())

    def make_settings(self) -> dict[str, str]:
        settings = super().make_settings()
        guarded = f",SASL_SSL://127.0.0.1:{self.guarded_port}"
        return settings | {
            "listeners": settings["listeners"] + guarded,
            "advertised.listeners": settings["advertised.listeners"] + guarded,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": f"{SCRAM} required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._store),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def url_of(self, user: str, folder: Path) -> str:
        """The log as this user opens it."""
        password = folder / f"{user}.password"
        password.write_text(user)
        password.chmod(0o600)
        return (
            f"kafka://127.0.0.1:{self.guarded_port}?security_protocol=SASL_SSL&sasl_mechanism={MECHANISM}"
            f"&ssl_cafile={self.certificate}&sasl_plain_username={user}&sasl_plain_password_file={password}"
        )


def documented() -> Iterator[ACL]:
    """What the page's commands allow."""
    for line in PAGE.read_text().splitlines():
        if not line.startswith("$ADD "):
            continue
        _, principal, *words = shlex.split(line)
        options = list(zip(words[::2], words[1::2], strict=True))
        names = [(name, value) for name, value in options if name in ("--topic", "--group", "--transactional-id")]
        operations = [value for name, value in options if name == "--operation"]
        is_prefix = ("--resource-pattern-type", "prefixed") in options
        assert len(options) == len(names) + len(operations) + is_prefix, line
        pattern = ACLResourcePatternType.PREFIXED if is_prefix else ACLResourcePatternType.LITERAL
        for operation in operations:
            allowed = ACLOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()]
            for kind, name in names:
                resource = ResourcePattern(
                    ResourceType[kind.removeprefix("--").replace("-", "_").upper()], name, pattern
                )
                yield ACL(principal, "*", allowed, ACLPermissionType.ALLOW, resource)


@pytest.fixture
def kafka(own_service: Callable[[type[StrictKafka]], StrictKafka]) -> StrictKafka:
    kafka = own_service(StrictKafka)
    with open_log(kafka.url) as log:  # the administrator
        log.create([*topics(), *map(raw_topic, ("raw", "decoded"))])
    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
        admin.create_acls(list(documented()))
        admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, ScramMechanism.SCRAM_SHA_256, user) for user in USERS]
        )
    return kafka


def guarded_cluster(tmp_path: Path, kafka: StrictKafka) -> Cluster:
    """A cluster in which each service has a file with a user of its own, and verbs have the operator's."""
    prepared = Cluster(tmp_path, "--log", kafka.url)
    own_key = f'[aggregator]\nkey = "{tmp_path}/aggregator.key"\n'
    text = prepared.config.read_text().replace("[aggregator]\n", own_key)
    for user in USERS:
        (tmp_path / f"{user}.toml").write_text(text.replace(kafka.url, kafka.url_of(user, tmp_path)))
    for role, service in prepared.about["services"].items():
        own = str(tmp_path / f"{role.partition('-')[0]}.toml")
        service["argv"] = [own if word == str(prepared.config) else word for word in service["argv"]]
    (tmp_path / "master.hgrc").write_text(
        (tmp_path / "master.hgrc").read_text().replace(kafka.url, kafka.url_of("relay", tmp_path))
    )
    prepared.config = tmp_path / "operator.toml"
    return prepared


def test_an_installation_runs_with_the_documented_rights(tmp_path: Path, kafka: StrictKafka) -> None:
    with guarded_cluster(tmp_path, kafka) as cluster:
        clone = cluster.create("x")
        node = cluster.commit(clone, "a")
        assert "recorded push in replication log" in cluster.push(clone)
        eventually(lambda: node in [head for line in cluster.lines() for head in line["data"].get("heads", [])])
        cluster.hg("-R", cluster.repository("x"), "sendheartbeat", on_master=True)
        with open_log(kafka.url) as log:  # a record that mirrors and aggregator set aside
            log.append([NewRecord(topic=EVENTS, key="x", value=b"malformed")])
        for words in (
            ("roster", "deactivate", "beta", "--yes"),
            ("roster", "activate", "beta"),
            ("topics", "check"),
            ("verify",),
        ):
            done = cluster.cli(*words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        eventually(lambda: rejected(cluster), "it is set aside")
        assert answered(cluster, "mirror-alpha", "/health")["ready"]
        assert "destinations" in answered(cluster, "aggregator", "/status")
        for service in ("relay hg://master.example", "destination lines"):
            eventually(lambda service=service: service in cluster.cli("status").stdout, service)
        cluster.stop("aggregator", "notifier", "mirror-alpha")
        cluster.start("aggregator", "notifier", "mirror-alpha")
        cluster.commit(clone, "b")
        before = len(cluster.lines())
        assert "recorded push in replication log" in cluster.push(clone)
        eventually(lambda: len(cluster.lines()) > before, "the next notice")
        for role in ("relay", "mirror-alpha", "mirror-beta", "aggregator", "notifier"):
            assert "not authorized" not in cluster.output(role)


def test_a_mirror_is_filled_and_compared_with_the_rights_of_its_user(tmp_path: Path, kafka: StrictKafka) -> None:
    with guarded_cluster(tmp_path, kafka) as cluster:
        clone = cluster.create("x")
        cluster.commit(clone, "a")
        cluster.push(clone)
        eventually(lambda: cluster.lines(), "the notice")
        cluster.stop("mirror-beta")
        for words in (("deactivate", "beta", "--yes"), ("remove", "beta", "--yes")):
            done = cluster.cli("roster", *words)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        [root] = (Path(mirror["root"]) for mirror in cluster.about["mirrors"] if mirror["name"] == "beta")
        shutil.rmtree(root)
        root.mkdir()
        cluster.config = tmp_path / "mirror.toml"
        for expected in (
            r"roster add beta --inactive --key (x25519:\S+); then run",
            r"roster join beta; then start it",
        ):
            done = cluster.cli("bootstrap", "beta")
            found = re.search(rf"on an operator's machine: vcsreplicator ({expected})", done.stderr)
            assert found, done.stderr
            cluster.config = tmp_path / "operator.toml"
            asked = cluster.cli(*found[1].partition(";")[0].split())
            assert asked.returncode == 0, (asked.stdout, asked.stderr)
            cluster.config = tmp_path / "mirror.toml"
        cluster.start("mirror-beta")
        cluster.config = tmp_path / "operator.toml"
        eventually(lambda: is_active(cluster, "beta"), "beta seals what it serves")
        cluster.config = tmp_path / "mirror.toml"
        eventually(lambda: (root / "x" / ".hg").is_dir(), "the repository is in its place")
        done = cluster.cli("verify", "beta")
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert not REFUSED.search(cluster.output("mirror-beta"))


def is_active(cluster: Cluster, name: str) -> bool:
    listed = json.loads(cluster.cli("roster", "list", "--json").stdout)
    return any(mirror["state"] == "active" and mirror["keys"] for mirror in listed["mirrors"] if mirror["name"] == name)


def answered(cluster: Cluster, role: str, page: str) -> dict[str, Any]:
    """What a service answers at its address in [listen]."""
    where = tomllib.loads(cluster.config.read_text())["listen"][role]
    try:
        with urllib.request.urlopen(f"http://{where}{page}", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{role}: {page}: {error.code} {error.read().decode()}") from error
    return found


def rejected(cluster: Cluster) -> bool:
    """Whether each of both mirrors and the aggregator has set something aside."""
    listed = cluster.cli("errors", "list", "--json").stdout
    return all(name in listed for name in ("alpha", "beta", "aggregator"))


SUBMISSIONS = """
log = "{log}"
[edge]
listen = "127.0.0.1:{port}"
queue = "{folder}/queue"
reserved = []
[decode]
schemas = "{schemas}"
repeats = "none"
"""


@contextmanager
def serving(kafka: StrictKafka, folder: Path, role: str, user: str) -> Iterator[tuple[Path, str]]:
    """Run an edge or a decoder as its user; yield the file of its log lines, and the URL of an edge."""
    port, schemas, output = free_port(), CHECKOUT / "notifier/messages/schemas/documents", folder / f"{role}.log"
    config = folder / f"{role}.toml"
    log = kafka.url_of(user, folder)
    config.write_text(SUBMISSIONS.format(log=log, port=port, folder=folder, schemas=schemas))
    with output.open("w") as lines, subprocess.Popen([*PROGRAM, role, "-c", str(config)], stderr=lines) as service:
        try:
            yield output, f"http://127.0.0.1:{port}/submit/eng-workflow/hgpush/1/"
        finally:
            service.terminate()


def submit(output: Path, url: str, document: str) -> None:
    eventually(lambda: '"ready"' in output.read_text(), "the edge is ready")
    request = urllib.request.Request(url + str(uuid.uuid4()), data=document.encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def count(kafka: StrictKafka, topic: str) -> int:
    with open_log(kafka.url) as log:
        return len(list(read_records(log, find_beginnings(log, topic))))


def test_an_edge_and_a_decoder_run_with_the_documented_rights(tmp_path: Path, kafka: StrictKafka) -> None:
    with serving(kafka, tmp_path, "edge", "edge") as (edge, url):
        for number in (1, 2):
            for document in (DOCUMENT, "no JSON"):
                submit(edge, url, document)
            with serving(kafka, tmp_path, "decode", "decoder") as (decoder, _):
                eventually(lambda number=number: count(kafka, "decoded") == number, "the document is decoded")
                eventually(lambda number=number: count(kafka, ERRORS) == number, "the other is rejected")
                with open_log(kafka.url_of("operator", tmp_path)) as log:
                    assert list(log.shares(f"{DECODE_GROUP}-").values()) == [[("raw", 0)]]
            assert not REFUSED.search(decoder.read_text())
        assert not REFUSED.search(edge.read_text())
        assert '"warning"' not in edge.read_text()


WATCHED = """
log = "{log}"
[guardian]
management-url = "{management}"
broker-url = "{broker}"
smtp-url = "smtp://127.0.0.1:{nowhere}"
sender = "guardian@pulse.example"
operator = "operator@pulse.example"
state = "{folder}/guardian.db"
every = 1
[poll]
repositories = ["{repository}"]
url = "{broker}"
state = "{folder}/poll.db"
interval = 0.2
"""


@contextmanager
def watching(config: Path, verb: str, name: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a guardian or poller; yield it and the file of its log lines."""
    output = config.with_name(f"{name}.log")
    with (
        output.open("w") as lines,
        subprocess.Popen([*PROGRAM, *verb.split(), "-c", str(config)], stderr=lines) as service,
    ):
        try:
            eventually(lambda: '"ready"' in output.read_text(), f"{name} is ready")
            yield service, output
        finally:
            service.terminate()


@pytest.mark.parametrize(("user", "verb"), [("guardian", "guardian watch"), ("poller", "poll")])
def test_a_killed_guardian_or_poller_is_replaced_with_documented_rights(
    tmp_path: Path, kafka: StrictKafka, rabbitmq: Any, user: str, verb: str
) -> None:
    config = tmp_path / "v.toml"
    with PushHost() as host:
        text = WATCHED.format(
            log=kafka.url_of(user, tmp_path),
            management=rabbitmq.management_url(),
            broker=rabbitmq.vhost(),
            nowhere=free_port(),
            folder=tmp_path,
            repository=host.url("x"),
        )
        config.write_text(text)

        def has_worked(before: int) -> bool:
            host.push("x")
            return count_states(kafka, verb.split()[0]) > before

        with watching(config, verb, "first") as (first, _), watching(config, verb, "second") as (_, second):
            eventually(lambda: has_worked(0), "the first works")
            assert "taking over" not in second.read_text()
            first.kill()
            eventually(lambda: "its process is gone" in second.read_text(), "the second takes over")
            before = count_states(kafka, verb.split()[0])
            eventually(lambda: has_worked(before), "the second works")
    for output in tmp_path.glob("*.log"):
        assert not REFUSED.search(output.read_text())


def count_states(kafka: StrictKafka, kind: str) -> int:
    """How often services of a kind wrote their state."""
    with open_log(kafka.url) as log:
        records = read_records(log, find_beginnings(log, WATCHES))
        return sum((record.key or "").startswith(f"{kind}/") for record in records)


def use_guardian_state(log: Log) -> None:
    with closing(open_guardian_state(some_settings(), log, SystemClock())) as state:
        state.end_round(1.0)


def use_poll_state(log: Log) -> None:
    settings = PollSettings(url="amqp://guest@127.0.0.1:10//", repositories=("http://127.0.0.1:9/x",))
    with closing(open_poll_state(settings, log, SystemClock())) as state:
        state.advance(state.add(settings.repositories, 0))


def use_promotion(log: Log) -> None:
    """What `promote` does in the log."""
    with closing(Follower(log)) as follower:
        follower.present()
    log.stored("mirror-alpha", EVENTS)
    known = read_master(log)
    newest = known.time if known else 0.0
    claim(log, MasterRecord(source="hg://new", mirror="alpha", replaces=(), time=newest + 1.0), known)
    log.append([NewRecord(topic=ROSTER_REQUESTS, key="promoted", value=b"{}")], timeout=5)


def use_offline_roster(log: Log) -> None:
    check_silence(log, 0.0)
    request = RosterRequest(
        id=uuid.uuid4().hex, verb=Verb.ALLOW_EMPTY, mirror=None, who="dana", time=1.0, reason="", allow=True
    )
    decide_offline(log, request)


@pytest.mark.parametrize(
    ("user", "use"),
    [
        ("guardian", use_guardian_state),
        ("poller", use_poll_state),
        ("promoter", use_promotion),
        ("offline", use_offline_roster),
    ],
)
def test_what_uses_a_transactor_needs_each_documented_right(
    tmp_path: Path, kafka: StrictKafka, user: str, use: Callable[[Log], None]
) -> None:
    def may_use() -> bool:
        with open_log(kafka.url_of(user, tmp_path)) as log:
            return may(lambda: use(log))

    with closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
        for right in [acl for acl in documented() if acl.principal == f"User:{user}"]:
            eventually(may_use, f"{user} with all rights")
            admin.delete_acls([right])
            eventually(lambda: not may_use(), f"{user} is refused without {right}")
            admin.create_acls([right])


def is_refused(output: Path, right: ACL) -> bool:
    """Whether a log line has a text that says the service is refused, and names what this right is for."""
    name = re.compile(rf"(?<![\w-]){re.escape(right.resource_pattern.resource_name)}(?![\w-])")
    texts = [str(text) for line in output.read_text().splitlines() for text in json.loads(line).values()]
    return any(REFUSED.search(text) and name.search(text) for text in texts)


def test_a_line_of_the_service_decode_is_no_refusal_of_the_group_decode(tmp_path: Path) -> None:
    group = ResourcePattern(ResourceType.GROUP, "decode", ACLResourcePatternType.LITERAL)
    right = ACL("User:decoder", "*", ACLOperation.READ, ACLPermissionType.ALLOW, group)
    output, line = tmp_path / "decode.log", {"service": "decode", "reason": "not authorized to access topics: raw"}
    output.write_text(json.dumps(line) + "\n")
    assert not is_refused(output, right)
    output.write_text(json.dumps(line | {"reason": "not authorized to access group decode"}) + "\n")
    assert is_refused(output, right)


def test_an_edge_and_a_decoder_need_each_documented_right(tmp_path: Path, kafka: StrictKafka) -> None:
    needed = {user: [acl for acl in documented() if acl.principal == f"User:{user}"] for user in ("edge", "decoder")}
    assert all(needed.values())
    with open_log(kafka.url) as log, closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap)) as admin:
        for user, rights in needed.items():
            for right in rights:
                admin.delete_acls([right])
                log.append([NewRecord(topic="raw", key=None, value=b"no JSON")])
                with serving(kafka, tmp_path, "decode" if user == "decoder" else "edge", user) as (output, url):
                    if user == "edge":
                        submit(output, url, DOCUMENT)
                    eventually(lambda output=output, right=right: is_refused(output, right), str(right))
                admin.create_acls([right])


@pytest.mark.parametrize(
    ("user", "topic"),
    [
        ("mirror", EVENTS),
        ("mirror", NOTICES),
        ("mirror", ROSTER),
        ("mirror", ROSTER_REQUESTS),
        ("notifier", NOTICES),
        ("relay", ROSTER),
        ("operator", EVENTS),
        ("operator", ACKS),
    ],
)
def test_a_user_without_the_right_is_refused(tmp_path: Path, kafka: StrictKafka, user: str, topic: str) -> None:
    with (
        open_log(kafka.url_of(user, tmp_path)) as log,
        pytest.raises(ReplicationError, match=REFUSED),
    ):
        log.append([NewRecord(topic=topic, key="x", value=b"")], timeout=5)


def may(act: Callable[[], object]) -> bool:
    """Whether the broker lets a user do it; any other error is raised."""
    try:
        act()
    except ReplicationError as error:
        if not REFUSED.search(str(error)):
            raise
        return False
    return True


@pytest.mark.parametrize("user", USERS)
def test_a_user_may_read_and_write_what_its_commands_say_and_nothing_else(
    tmp_path: Path, kafka: StrictKafka, user: str
) -> None:
    rights = [acl for acl in documented() if acl.principal == f"User:{user}"]
    names = [*(topic.name for topic in topics()), "raw", "decoded"]

    def is_documented(topic: str, operation: ACLOperation) -> bool:
        return any(
            acl.operation is operation
            and acl.resource_pattern.resource_type is ResourceType.TOPIC
            and acl.resource_pattern.resource_name in ("*", topic)
            for acl in rights
        )

    def read(log: Log, topic: str) -> None:
        with closing(log.reader({(topic, 0): 0})) as reader:
            reader.poll(5.0, limit=1)

    with open_log(kafka.url) as log:  # so that no reader waits
        log.append([NewRecord(topic=name, key="x", value=b"x") for name in names])
    with open_log(kafka.url_of(user, tmp_path)) as log:
        found = {
            name: (
                may(lambda name=name: read(log, name)),  # type: ignore[misc]
                may(lambda name=name: log.append([NewRecord(topic=name, key="x", value=b"x")], timeout=5)),  # type: ignore[misc]
            )
            for name in names
        }
    expected = {
        name: (is_documented(name, ACLOperation.READ), is_documented(name, ACLOperation.WRITE)) for name in names
    }
    assert found == expected
