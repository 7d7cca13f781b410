# SPDX-License-Identifier: GPL-2.0-or-later
"""A postponed module is loaded at its first use, once, by any number of threads; imports alone load nothing."""

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hgext.vcsreplicator.cli.postponed import ModuleStandIn, postpone

NAME = "rarely_used_module"


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that gets a line each time the module is loaded."""
    (tmp_path / f"{NAME}.py").write_text(
        f"import time\nwith open({str(tmp_path / 'loaded')!r}, 'a') as file:\n    file.write('once ')\n"
        "time.sleep(0.05)\nvalue = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loaded").touch()
    yield tmp_path / "loaded"
    sys.modules.pop(NAME, None)


def test_an_import_of_a_postponed_module_does_not_load_it_and_its_use_does(loaded: Path) -> None:
    postpone(NAME, begin=lambda: "begun")
    module = importlib.import_module(NAME)
    assert module.begin() == "begun"
    assert loaded.read_text() == ""
    assert module.value == 1
    assert loaded.read_text() == "once "
    assert type(importlib.import_module(NAME)) is not ModuleStandIn


def test_what_is_set_in_a_postponed_module_is_set_for_all(loaded: Path) -> None:
    postpone(NAME)
    importlib.import_module(NAME).value = 2
    assert importlib.import_module(NAME).value == 2


def test_a_module_that_is_loaded_already_is_not_postponed(loaded: Path) -> None:
    module = importlib.import_module(NAME)
    postpone(NAME)
    assert importlib.import_module(NAME) is module


def test_threads_that_use_a_postponed_module_at_once_load_it_once_and_all_find_it_whole(loaded: Path) -> None:
    postpone(NAME)
    module = importlib.import_module(NAME)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda _: module.value, range(8))) == [1] * 8
    assert loaded.read_text() == "once "


def test_an_import_of_a_module_by_its_dotted_name_finds_the_stand_in(loaded: Path) -> None:
    package = loaded.with_name("rare_package")
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "module.py").write_text("value = 2\n")
    postpone("rare_package.module")
    try:
        assert importlib.import_module("rare_package").module.value == 2
        assert type(importlib.import_module("rare_package").module) is not ModuleStandIn
    finally:
        for name in ("rare_package.module", "rare_package"):
            sys.modules.pop(name, None)
