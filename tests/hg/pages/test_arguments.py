# SPDX-License-Identifier: GPL-2.0-or-later
"""A request that makes no sense is the client's mistake and no alarm; a fault of ours is an alarm, and never the client's."""

from collections.abc import Iterator

import pytest

from testing.builders.asked_pages import AskedPages, asked_pages
from tests.hg.pages.test_files import ROLES, History, hgrc

pytestmark = pytest.mark.processes

FAULTS = ("KeyError('x')", "ValueError('x')", "b'\\xff'.decode()", "TypeError('x')", "error.ProgrammingError(b'x')")
FAULTY = """
from mercurial.hgweb import webcommands
from mercurial import error
def uisetup(ui):
    def summary(web):
        fault = web.req.qsparams[b"fault"].decode()
        raise eval(fault)
    webcommands.summary = summary
"""
NODE = "7" * 40
SENSELESS = (
    "cmd=log&rev=wdir()",
    "cmd=log&rev=%00",
    "cmd=log&node=%FF",
    "cmd=static",
    "cmd=static&file=../x",
    "cmd=static&file=/etc/passwd",
    "cmd=static&file=",
    "cmd=archive",
    "cmd=archive&node=tip",
    "cmd=archive&node=tip&type=../x",
    "cmd=graph&graphtop=../x",
    "cmd=graph&graphtop=" + NODE,
    "cmd=graph&graphtop=" + "f" * 40,
    "cmd=graph&graphtop=" + "z" * 40,
    "cmd=filelog",
    "cmd=filediff",
    "cmd=comparison",
    "cmd=annotate",
    "cmd=annotate&node=tip&file=%00",
    "cmd=annotate&node=tip&file=../../x",
    "cmd=comparison&node=tip&file=f&context=-x",
    "cmd=filelog&node=0&file=f&linerange=9:1",
    "cmd=filelog&node=0&file=f&linerange=x",
    "cmd=filelog&node=0&file=f&linerange=1:99999999999999999999",
    "cmd=nosuch",
    "cmd=help&node=no.such",
    "cmd=summary%00",
    "style=%00",
    "cmd=batch",
    "cmd=batch&cmds=x",
    "cmd=batch&cmds=nosuch+x%3Dy",
    "cmd=batch&cmds=known+x%3Dy",
    "cmd=batch&cmds=known+nodes%3Dzz",
    "cmd=batch&cmds=known+nodes%3D%3D",
    "cmd=getbundle&heads=zz",
    "cmd=getbundle&heads=" + "f" * 40,
    "cmd=getbundle&common=" + "f" * 40,
    "cmd=branches&nodes=" + "f" * 40,
    "cmd=getbundle&common=12",
    "cmd=known&nodes=zz",
    "cmd=known&nodes=12",
    "cmd=between&pairs=a",
    "cmd=between&pairs=" + NODE,
    "cmd=branches&nodes=12",
    "cmd=changegroup&roots=12",
    "cmd=listkeys",
    "cmd=lookup",
    "cmd=get_cached_bundle_inline&path=../../x",
    "cmd=getbundle&narrow=1",
    "cmd=getbundle&cg=0&phases=1&bundlecaps=x",
    f"cmd=branches&nodes={'0' * 40}%20",
    "cmd=batch&cmds=stream_out%20",
    "cmd=batch&cmds=getbundle%20heads=",
)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    root = tmp_path_factory.mktemp("arguments") / "root"
    root.mkdir()
    history = History(root / "repo")
    (history.folder / ".hg" / "replicated-watermark").write_text(f"1 1 6 {history.node(5)} -\n")
    return history


@pytest.fixture(scope="module", params=[*ROLES, "none"])
def pages(history: History, request: pytest.FixtureRequest) -> Iterator[AskedPages]:
    root = history.folder.parent
    (root.parent / "faulty.py").write_text(FAULTY)
    extensions = hgrc(request.param, root.parent) if request.param != "none" else "[web]\nallow-archive = zip\n"
    with asked_pages(root, f"{extensions}[extensions]\nfaulty = {root.parent}/faulty.py\n") as asked:
        yield asked


@pytest.mark.sample(12)
@pytest.mark.parametrize("query", SENSELESS)
def test_a_request_without_sense_is_the_clients_mistake(pages: AskedPages, query: str) -> None:
    before = len(pages.alarms())
    answer = pages.get("/repo", query)
    assert (answer.failure, pages.alarms()[before:]) == (None, [])
    assert 400 <= answer.status < 500 or (answer.status == 200 and answer.body), answer
    assert pages.get("/repo", "cmd=heads").status == 200


@pytest.mark.parametrize(
    "name", ["a" * 300, f"{'a' * 200}/" * 30, "style-paper.css/x"], ids=["long", "deep", "below a file"]
)
@pytest.mark.parametrize("of", ["", "/repo"], ids=["the folder", "a repository"])
def test_a_name_that_no_file_can_have_is_not_there(pages: AskedPages, of: str, name: str) -> None:
    before = len(pages.alarms())
    answer = pages.get(f"{of}/static/{name}", "")
    assert (answer.status, pages.alarms()[before:]) == (404, [])


@pytest.mark.parametrize("page", ["annotate/nosuch", "filelog/null", "log/null", "raw-file/nosuch"])
def test_a_name_longer_than_any_of_a_store_is_not_there(pages: AskedPages, page: str) -> None:
    before = len(pages.alarms())
    answer = pages.get(f"/repo/{page}/{'a/' * 3000}b", "")
    assert (answer.status, answer.failure, pages.alarms()[before:]) == (404, None, [])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_is_no_mistake_of_the_client(pages: AskedPages, fault: str) -> None:
    before = len(pages.alarms())
    answer = pages.get("/repo", f"cmd=summary&fault={fault}".replace("\\", "%5C"))
    assert answer.status == 500
    [alarm] = pages.alarms()[before:]
    assert (alarm["event"], alarm["path"]) == ("request failed", "/repo")
    assert alarm["place"]


@pytest.mark.parametrize("header", ["HTTP_X_HGARGS_POST", "CONTENT_LENGTH"])
@pytest.mark.parametrize("value", ["x", "-1", "9" * 30])
def test_a_length_that_is_none_is_the_clients_mistake(pages: AskedPages, header: str, value: str) -> None:
    before = len(pages.alarms())
    answer = pages.get("/repo", "cmd=known", body=b"nodes=", **{header: value})
    assert (answer.failure, pages.alarms()[before:]) == (None, [])
    assert answer.status in (200, 400)
