"""ARCHITECTURE.md names what exists."""

import ast
import re

from tests.architecture.source import ROOT, SRC, expect_none, modules

PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
NAMES: list[str] = re.findall(r"`([^`\n]+)`", PAGE)


def test_every_module_it_names_exists():
    paths = [name for name in NAMES if re.fullmatch(r"[a-z_/]+(\.py|/)", name)]
    assert len(paths) > 40
    expect_none(path for path in paths if not (SRC / "antiphon" / path).exists())


def test_every_class_and_method_it_names_exists():
    classes: dict[str, list[str]] = {}
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(module.name)
    texts = {module.name: module.text for module in modules()}
    named = [name.split(".") for name in NAMES if re.fullmatch(r"[A-Z][a-z]\w+(\.\w+)?", name)]
    assert len(named) > 15
    for owner, *members in named:
        assert owner in classes, owner
        for member in members:
            assert any(f"def {member}" in texts[place] for place in classes[owner]), f"{owner}.{member}"
