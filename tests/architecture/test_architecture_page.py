"""ARCHITECTURE.md names modules by their paths. test_named_things.py checks the other names of pages."""

import re

from tests.architecture.source import ROOT, SRC, expect_none

PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
NAMES: list[str] = re.findall(r"`([^`\n]+)`", PAGE)


def test_every_module_it_names_exists():
    paths = [name for name in NAMES if re.fullmatch(r"[a-z_/]+(\.py|/)", name)]
    assert len(paths) > 40
    expect_none(path for path in paths if not (SRC / "antiphon" / path).exists())
