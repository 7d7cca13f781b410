# SPDX-License-Identifier: GPL-2.0-or-later
"""`config check` runs Mercurial to see if it would continue without an extension."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import mercurial
import pytest
from click.testing import CliRunner, Result
from mercurial import util

from hgext.vcsreplicator.cli import config_hg
from hgext.vcsreplicator.cli.verbs import program
from hgext.vcsreplicator.log import topics
from hgext.vcsreplicator.log.opening import open_log
from hgext.vcsreplicator.words.errors import BadConfig
from hgext.vcsreplicator.words.version import VERSION
from testing.services.cache import CHECKOUT
from testing.warm_hg import shared_hg

pytestmark = pytest.mark.processes

MIRROR = """\
[extensions]
*:required = yes
pushlog =
vcsreplicator =
[vcsreplicator]
role = mirror
"""


COLD = sys.executable


@pytest.fixture(autouse=True)
def run_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has this Python run the verb, which takes the `hg` beside it: at first a warm one."""

    def run_by(python: str) -> None:
        monkeypatch.setattr(sys, "executable", python)

    run_by(str(Path(shared_hg()).with_name("python")))
    return run_by


def checked(
    folder: Path,
    hgrc: str,
    *,
    by_environment: bool = False,
    is_path_set: bool = True,
    sections: str = "",
    options: tuple[str, ...] = (),
) -> Result:
    """`config check` with this hgrc, and these sections of the services' file."""
    url = f"sqlite:///{str(folder / 'log.db').lstrip('/')}"
    with open_log(url, creates=True) as log:
        log.create(topics())
    (folder / "services.toml").write_text(f'log = "{url}"\n{sections}')
    (folder / "hgrc").write_text(hgrc)
    words = ["config", "check", "--config", str(folder / "services.toml"), *options]
    if by_environment:
        return CliRunner().invoke(program, words, env={"HGRCPATH": str(folder / "hgrc") if is_path_set else None})
    return CliRunner().invoke(program, [*words, "--hgrc", str(folder / "hgrc")])


def of_pages() -> list[str]:
    """The hgrc files that pages show whole."""
    texts = [page.read_text() for page in (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md")))]
    found = [block for text in texts for block in re.findall(r"^```ini\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]
    return [block for block in found if "\nvcsreplicator =" in block]


@pytest.mark.parametrize("hgrc", of_pages())
def test_an_hgrc_that_a_page_shows_is_right(tmp_path: Path, hgrc: str) -> None:
    result = checked(tmp_path, hgrc.replace("/repos = .", f"{tmp_path} = ."))
    assert result.exit_code == 0, result.exception
    for name in ("vcsreplicator", "pushlog"):
        assert f"hg extension {name}: not enabled" not in result.output


@pytest.mark.parametrize(
    ("required", "by_environment"),
    [
        ("*:required = yes", False),
        ("vcsreplicator:required = on\npushlog:required = Yes", False),
        ("*:required=1", True),
    ],
)
def test_an_hgrc_that_requires_the_extensions_is_right(tmp_path: Path, required: str, by_environment: bool) -> None:
    result = checked(tmp_path, MIRROR.replace("*:required = yes", required), by_environment=by_environment)
    assert result.exit_code == 0, result.exception
    assert "hg extension vcsreplicator: " in result.output
    assert "hg extension pushlog: " in result.output


DECODED = """
[public.urls]
"" = "https://hg.example/"
[notifier.decoder]
type = "decode"
[decode]
"""


@pytest.mark.parametrize(
    ("key", "sections", "is_named"),
    [("yes", "", True), ("yes", DECODED, False), ("no", "", False), ("", "", False)],
)
def test_connections_that_are_recorded_for_nobody_are_named(
    tmp_path: Path, key: str, sections: str, is_named: bool
) -> None:
    hgrc = MIRROR.replace("role = mirror", f"role = master\nlog = sqlite://{tmp_path}/log.db")
    result = checked(tmp_path, hgrc + (f"record-connection = {key}\n" if key else ""), sections=sections)
    assert result.exit_code == 0, result.exception
    assert ("record-connection is on, but no destination" in result.output) == is_named


def test_commits_are_refused_or_accepted_and_never_accepted_by_a_mirror(tmp_path: Path) -> None:
    master = MIRROR.replace("role = mirror", f"role = master\nlog = sqlite://{tmp_path}/log.db")
    assert checked(tmp_path, master + "commits = accept\n").exit_code == 0
    wrong = checked(tmp_path, master + "commits = allow\n")
    assert 'hgrc: hg root: config: [vcsreplicator] commits: expected refuse or accept, got "allow"' in str(
        wrong.exception
    )
    on_mirror = checked(tmp_path, MIRROR + "commits = accept\n")
    assert on_mirror.exit_code == 0
    assert "commits = accept has no effect: a mirror refuses all changes" in on_mirror.output


def test_an_unknown_word_in_what_the_pushlog_records_is_named(tmp_path: Path) -> None:
    assert checked(tmp_path, MIRROR + "[pushlog]\nrecord = push serve merge\n").exit_code == 0
    wrong = checked(tmp_path, MIRROR + "[pushlog]\nrecord = push marge\n")
    assert "config: [pushlog] record: expected some of push, serve, " in str(wrong.exception)
    assert 'got "marge"' in str(wrong.exception)


@pytest.mark.parametrize(("line", "is_named"), [("httppostargs = no", True), ("httppostargs = yes", False)])
def test_arguments_in_headers_are_named(tmp_path: Path, line: str, is_named: bool) -> None:
    done = checked(tmp_path, MIRROR + f"[experimental]\n{line}\n")
    assert done.exit_code == 0
    assert ("[experimental] httppostargs is off" in done.output) == is_named


NO_EFFECT = "has no effect: a mirror follows its master; remove the line"
ELSEWHERE = "mirrors do not follow this hgrc; write the line into that of each mirror, too"
SETTINGS = {
    "mirror phases": ("mirror", "[phases]\npublish = no\n", f"[phases] publish = no {NO_EFFECT}"),
    "mirror markers": (
        "mirror",
        "[experimental]\nevolution.exchange = yes\n",
        f"[experimental] evolution.exchange = yes {NO_EFFECT}",
    ),
    "mirror view": ("mirror", "[server]\nview = immutable\n", None),
    "master phases": ("master", "[phases]\npublish = no\n", None),
    "master view": ("master", "[server]\nview = immutable\n", f"[server] view = immutable: {ELSEWHERE}"),
    "master served": ("master", "[server]\nview = served\n", None),
    "master readers": ("master", "[web]\ndeny_read = *\n", f"[web] deny_read = *: {ELSEWHERE}"),
    "master all readers": ("master", "[web]\nallow_read = *\n", None),
}


@pytest.mark.parametrize(("role", "sections", "named"), SETTINGS.values(), ids=SETTINGS)
def test_settings_that_a_mirror_does_not_follow_are_named(
    tmp_path: Path, role: str, sections: str, named: str | None
) -> None:
    hgrc = MIRROR.replace("role = mirror", f"role = {role}\nlog = sqlite://{tmp_path}/log.db")
    result = checked(tmp_path, hgrc + sections)
    assert result.exit_code == 0, result.exception
    lines = [line for line in result.output.splitlines() if NO_EFFECT in line or ELSEWHERE in line]
    assert lines == ([f"{tmp_path}/hgrc: {named}"] if named else [])


def test_repositories_whose_names_mirrors_or_servers_refuse_are_named(tmp_path: Path) -> None:
    for name in ("proj", "PROJ", "other", "static/one", "other/static"):
        (tmp_path / "repos" / name / ".hg" / "store").mkdir(parents=True)
        (tmp_path / "repos" / name / ".hg" / "requires").write_text("store\n")
    master = (
        f"{MIRROR.replace('mirror', 'master')}relay = /run/relay.sock\n[vcsreplicator-roots]\n{tmp_path}/repos = .\n"
    )
    result = checked(tmp_path, master)
    assert result.exit_code == 0, result.exception
    line = f"only in case or Unicode: {tmp_path}/repos/PROJ, {tmp_path}/repos/proj: rename all but one"
    assert result.output.count(line) == 1, result.output
    line = f"their own files at static/, and serve no repository there: {tmp_path}/repos/static/one: rename\n"
    assert result.output.count(line) == 1, result.output


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "*:required = yes\n",
            "",
            r"[extensions] *:required: expected yes, got nothing: without it Mercurial continues",
        ),
        ("*:required = yes", "*:required = no", "[extensions] *:required: expected yes, got no: "),
        ("*:required = yes", "vcsreplicator:required = yes", "it cannot load pushlog"),
        ("*:required = yes", "pushlog:required = yes", "it cannot load vcsreplicator"),
        ("*:required = yes", "*:required = yes\npushlog:required = no", "it cannot load pushlog"),
        ("vcsreplicator =", "vcsreplicater =", 'failed to import extension "vcsreplicater"'),
        (
            "*:required = yes\npushlog =\nvcsreplicator =",
            "vcsreplicater =",
            "vcsreplicator: expected a line that loads",
        ),
        ("vcsreplicator =\n", "vcsreplicator = !\n", "vcsreplicator: expected a line that loads it"),
        (
            "role = mirror",
            "role = mirrors",
            'hgrc: hg root: config: [vcsreplicator] role: expected master or mirror, got "mirrors"',
        ),
    ],
)
def test_an_hgrc_with_which_mercurial_would_continue_is_refused(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert old in MIRROR
    result = checked(tmp_path, MIRROR.replace(old, new))
    assert isinstance(result.exception, BadConfig), result.output
    assert complaint in str(result.exception)
    assert str(result.exception).startswith(f"{tmp_path}/hgrc: ")


@pytest.mark.parametrize("line", ["", "pushlog = !\n"])
def test_a_master_without_the_pushlog_is_refused(tmp_path: Path, line: str) -> None:
    """Its pushes would be accepted, and none of them would ever have a row."""
    without = MIRROR.replace("pushlog =\n", line)
    result = checked(tmp_path, without.replace("mirror", "master") + "relay = /run/relay.sock\n")
    assert isinstance(result.exception, BadConfig), result.output
    assert str(result.exception) == (
        f"{tmp_path}/hgrc: [extensions] pushlog: expected a line that loads it, got nothing: "
        "pushes would be accepted, and would never get a row in the pushlog"
    )
    result = checked(tmp_path, without)
    assert (result.exit_code, result.exception) == (0, None), "a mirror's service brings its own"
    assert "hg extension pushlog: not enabled" in result.output


def test_a_role_without_the_extension_is_wrong_by_environment_too(tmp_path: Path) -> None:
    result = checked(
        tmp_path,
        MIRROR.replace("*:required = yes\n", "").replace("vcsreplicator =", "vcsreplicater ="),
        by_environment=True,
    )
    assert isinstance(result.exception, BadConfig), result.output
    assert str(result.exception).startswith("HGRCPATH: [extensions] vcsreplicator: expected a line that loads it")


def test_what_mercurial_cannot_set_up_is_found_by_a_cold_start_too(
    tmp_path: Path, run_by: Callable[[str], None]
) -> None:
    run_by(COLD)
    (tmp_path / "other.py").write_text("from mercurial import exchange\ndel exchange.unbundle\n")
    result = checked(tmp_path, MIRROR.replace("pushlog =", f"other = {tmp_path}/other.py\npushlog =", 1))
    assert isinstance(result.exception, BadConfig)
    assert "mercurial.exchange.unbundle is missing" in str(result.exception)


def test_the_hg_beside_the_verb_is_asked_although_the_path_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PATH that sudo sets does not name the folder of the installation."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = checked(tmp_path, MIRROR)
    assert result.exit_code == 0, result.exception
    assert "hg extension vcsreplicator: " in result.output


def test_without_any_hg_the_check_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_by: Callable[[str], None]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run_by(str(tmp_path / "python"))
    result = checked(tmp_path, MIRROR)
    assert result.exit_code == 0, result.exception
    assert f"no hg beside {tmp_path}/python and none on PATH" in result.output


def test_a_machine_without_master_and_mirror_needs_no_hgrc(tmp_path: Path) -> None:
    result = checked(tmp_path, "[ui]\nusername = dana\n", by_environment=True)
    assert result.exit_code == 0, result.exception
    assert "no hgrc checked: with this HGRCPATH hg does not load vcsreplicator" in result.output
    assert isinstance(checked(tmp_path, "[ui]\nusername = dana\n").exception, BadConfig)


def test_without_hgrcpath_the_check_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # no hgrc of a developer
    result = checked(tmp_path, "", by_environment=True, is_path_set=False)
    assert result.exit_code == 0, result.exception
    line = result.output.splitlines()[-1]
    assert line == (
        "no hgrc checked: HGRCPATH is not set, and hg does not load vcsreplicator; "
        "on a master or mirror, run: vcsreplicator config check --hgrc FILE"
    )


def test_an_empty_hgrc_is_as_good_as_none_without_master_and_mirror(tmp_path: Path) -> None:
    result = checked(tmp_path, "", by_environment=True)
    assert result.exit_code == 0, result.exception
    assert "no hgrc checked: with this HGRCPATH" in result.output


def with_relay(folder: Path, *, hgrc: tuple[str, str], services: tuple[str, str]) -> Result:
    """`config check` of a master; socket and root (folder = prefix) by its hgrc and by the services' file."""
    (folder / "repos").mkdir()
    (folder / "link").symlink_to(folder / "repos")
    text = MIRROR.replace("mirror", "master") + f"relay = {hgrc[0]}\n[vcsreplicator-roots]\n{folder}/{hgrc[1]}\n"
    relay = f'[relay]\nsource = "hg://master"\nsocket = "{services[0]}"\n[relay.roots]\n"{folder}/{services[1]}\n'
    return checked(folder, text, sections=relay)


@pytest.mark.parametrize("root", ["repos = .", "repos/ = .", "link = ."])
def test_a_masters_hgrc_that_agrees_with_its_relay_is_right(tmp_path: Path, root: str) -> None:
    relay = f'repos" = ""\n"{tmp_path}/of-another-hgrc" = "other"'
    result = with_relay(tmp_path, hgrc=("/run/relay.sock", root), services=("/run/relay.sock", relay))
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize(
    ("hgrc", "complaint"),
    [
        (("/run/rely.sock", "repos = ."), "[vcsreplicator] relay: expected /run/relay.sock, the socket of [relay] in "),
        (("/run/relay.sock", "repo = ."), "[vcsreplicator-roots]: FOLDER/repo = .: not in [relay.roots] of "),
        (("/run/relay.sock", "repos = pre"), "[vcsreplicator-roots]: FOLDER/repos = pre: not in [relay.roots] of "),
    ],
)
def test_a_masters_hgrc_that_its_relay_does_not_know_is_refused(
    tmp_path: Path, hgrc: tuple[str, str], complaint: str
) -> None:
    result = with_relay(tmp_path, hgrc=hgrc, services=("/run/relay.sock", 'repos" = ""'))
    assert isinstance(result.exception, BadConfig), result.output
    assert complaint.replace("FOLDER", str(tmp_path)) in str(result.exception)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("log = kafka://[", "log: expected sqlite:///absolute/path or kafka://host:port"),
        ("log = kafka://127.0.0.1:9092?acks=0", "acks"),
        ("log = sqlite:///", "log: expected sqlite:///absolute/path without options"),
        ("blobs = s3://[", "blobs: expected file:///absolute/folder or s3://bucket/prefix"),
    ],
)
def test_a_url_in_a_masters_hgrc_that_no_push_could_use_is_refused(tmp_path: Path, line: str, complaint: str) -> None:
    """A push with it says only that the log is not reachable, and is kept for good."""
    result = checked(tmp_path, MIRROR.replace("mirror", "master") + f"relay = /run/relay.sock\n{line}\n")
    assert isinstance(result.exception, BadConfig), result.output
    assert str(result.exception).startswith(f"{tmp_path}/hgrc: [vcsreplicator] ")
    assert complaint in str(result.exception)


def test_a_root_with_a_nul_is_refused_without_a_traceback(tmp_path: Path) -> None:
    text = MIRROR.replace("mirror", "master") + "relay = /run/relay.sock\n[vcsreplicator-roots]\n/r\0 = .\n"
    result = checked(tmp_path, text)
    assert isinstance(result.exception, BadConfig), result.output
    assert "[vcsreplicator-roots] /r\\0: expected a folder without the character NUL" in str(result.exception)


def test_a_masters_hgrc_whose_pushes_are_no_events_is_refused(tmp_path: Path) -> None:
    relay = f'[relay]\nsource = "hg://master"\nsocket = "/run/relay.sock"\n[relay.roots]\n"{tmp_path}/repos" = "pre"\n'
    result = checked(tmp_path, MIRROR.replace("mirror", "master") + "relay = /run/relay.sock\n", sections=relay)
    assert isinstance(result.exception, BadConfig), result.output
    assert str(result.exception) == (
        f"{tmp_path}/hgrc: [vcsreplicator-roots]: expected a root of [relay.roots] of {tmp_path}/services.toml "
        f"({tmp_path}/repos = pre), got nothing: pushes would not be replicated"
    )


@pytest.mark.parametrize(("urls", "is_named"), [("", True), ('"" = "https://hg.example/"', False)])
def test_a_notifier_without_public_urls_is_named(tmp_path: Path, urls: str, is_named: bool) -> None:
    result = checked(tmp_path, MIRROR, sections=f'[public.urls]\n{urls}\n[notifier.lines]\ntype = "stdout"\n')
    assert result.exit_code == 0, result.exception
    assert ("[public.urls] is missing or empty: the notifier announces nothing" in result.output) == is_named


# The hg of an environment that has Mercurial and nothing of ours: the lines that make our folders known are not read.
OTHER_HG = """\
#!{python} -S
import sys
sys.path.append({packages!r})
{lines}
from mercurial import dispatch
dispatch.run()
"""


def write_program(file: Path, text: str) -> str:
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


def other_hg(folder: Path, *lines: str) -> str:
    packages = str(Path(mercurial.__file__).parents[1])
    text = OTHER_HG.format(python=COLD, packages=packages, lines="\n".join(lines))
    return write_program(folder / "other-hg", text)


def refused(folder: Path, program: str) -> str:
    """The one line with which the check refuses this hg."""
    result = checked(folder, MIRROR, options=("--hg", program))
    assert isinstance(result.exception, BadConfig), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_the_hg_that_reads_the_file_is_asked_instead_of_our_own(tmp_path: Path) -> None:
    """Another release of the extension lies in its environment."""
    there = tmp_path / "there"
    (there / "hgext").mkdir(parents=True)
    for name in ("hgext/vcsreplicator", "pushlog"):
        shutil.copytree(CHECKOUT / name, there / name)
    (there / "hgext/vcsreplicator/words/version.py").write_text('VERSION = "0.0.9"\n')
    program = other_hg(tmp_path, f"sys.path.insert(0, {str(there)!r})")
    result = checked(tmp_path, MIRROR, options=("--hg", program))
    assert result.exit_code == 0, result.exception
    assert f"{program}: Mercurial {util.version().decode()}\n" in result.output
    assert f"hg extension vcsreplicator: {there}/hgext/vcsreplicator/__init__.py" in result.output
    assert f"hg loads vcsreplicator 0.0.9, this is {VERSION}: install one release for both" in result.output
    assert "install one release" not in checked(tmp_path, MIRROR).output


def test_an_hg_that_cannot_load_the_extension_is_refused(tmp_path: Path) -> None:
    assert "other-hg config: abort: failed to import extension" in refused(tmp_path, other_hg(tmp_path))


def test_an_hg_that_is_too_old_for_the_extension_is_refused(tmp_path: Path) -> None:
    lines = (
        f"sys.path.insert(0, {str(CHECKOUT)!r})",
        "from mercurial import __version__",
        "__version__.version = '6.1'",
    )
    text = refused(tmp_path, other_hg(tmp_path, *lines))
    assert re.search(r"needs Mercurial 6\.\d", text), text


def test_an_hg_that_is_missing_or_no_program_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, f"{tmp_path}/none") == f"--hg: {tmp_path}/none: no such program"
    (tmp_path / "text").write_text("text")
    assert refused(tmp_path, f"{tmp_path}/text").endswith(f"{tmp_path}/text cannot run: Permission denied")


def test_an_hg_that_hangs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_hg, "PATIENCE", 0.2)
    program = write_program(tmp_path / "hangs", "#!/bin/sh\nexec sleep 60\n")
    assert refused(tmp_path, program).endswith(f"hangs version: {program} did not end within 0.2 s")


LOCKED = "lock keeps readers in Rust out, too"
IGNORED = "[rhg] ignored-extensions: rhg does not ask hg"
RUST = {
    "none": ("", "", []),
    "asks hg": ("[rhg]\non-unsupported = fallback\n", "", []),
    "ignores all": ("[rhg]\nignored-extensions = *\n", "", [IGNORED]),
    "ignores ours": ("[rhg]\nignored-extensions = strip, vcsreplicator\n", "", [IGNORED]),
    "ignores another": ("[rhg]\nignored-extensions = strip\n", "", []),
    "locked": ("[rhg]\non-unsupported = fallback\n", '[mirror.alpha]\nroot = "/r"\nlock = true\n', [LOCKED]),
    "locked without": ("", '[mirror.alpha]\nroot = "/r"\nlock = true\n', []),
}


@pytest.mark.parametrize(("hgrc", "sections", "named"), RUST.values(), ids=RUST)
def test_what_a_mercurial_in_rust_makes_of_the_repositories_is_named(
    tmp_path: Path, hgrc: str, sections: str, named: list[str]
) -> None:
    result = checked(tmp_path, MIRROR + hgrc, sections=sections)
    assert result.exit_code == 0, result.exception
    assert [text for text in (IGNORED, LOCKED) if text in result.output] == named


def test_an_hg_that_is_written_in_rust_is_seen_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "rhg").write_text(f'#!/bin/sh\nexec {shared_hg()} "$@"\n')
    (tmp_path / "rhg").chmod(0o755)
    (tmp_path / "hg").symlink_to("rhg")
    locked = MIRROR.replace("role = mirror", f"role = master\nlock = yes\nlog = sqlite://{tmp_path}/log.db")
    result = checked(tmp_path, locked, options=("--hg", f"{tmp_path}/hg"))
    assert result.exit_code == 0, result.exception
    assert LOCKED in result.output
