"""Names: functions are verbs, and a class name stands for one class. See tests/architecture/words.py."""

import re

from tests.architecture.source import ROOT, Module, expect_none, modules
from tests.architecture.words import class_names, duplicates, is_participle, participles, unknown_parameters

ALLOWED_DUPLICATES: dict[str, str] = {}
"""Class name, with the reason."""

LONGEST_TEST_NAME = 60


def test_no_function_property_or_module_is_a_bare_participle():
    expect_none(line for module in modules() for line in participles(module))


def test_a_class_name_stands_for_one_class():
    found = duplicates(modules())
    expect_none(
        f"{name}: {', '.join(places)}" for name, places in found.items() if name not in ALLOWED_DUPLICATES
    )
    assert ALLOWED_DUPLICATES.keys() <= found.keys()


def test_names_of_tests_are_short():
    expect_none(
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
        if len(name) > LONGEST_TEST_NAME
    )


def test_docstrings_explain_parameters_that_are_there():
    expect_none(line for module in modules() for line in unknown_parameters(module))


def test_an_unknown_parameter_is_found():
    explains = '"""Opens it. `{}`: the time in seconds."""'
    text = (
        f"def load(timeout): {explains.format('within')}\ndef save(timeout): {explains.format('timeout')}\n"
    )
    assert list(unknown_parameters(Module("antiphon.x", text))) == [
        "antiphon.x:1 load has no parameter within"
    ]


def test_a_participle_is_told_from_a_verb():
    bare = ["said", "kept", "listed", "_shown", "tokenized", "unloaded", "made", "limited"]
    verbs = ["embed", "feed", "list_models", "read", "run", "set", "need", "is_used", "seed", "send"]
    assert [name for name in bare + verbs if is_participle(name)] == bare


def test_findings_are_found():
    properties = "class A:\n    @property\n    def used(self): ...\n    @override\n    def told(self): ...\n"
    text = properties + "def load(): ...\nclass A: ...\n"
    module, other = Module("antiphon.keyed", text), Module("antiphon.x", "class B: ...\nclass A: ...\n")
    assert [line.rpartition(": ")[2] for line in participles(module)] == [
        "antiphon.keyed is named by a participle",
        "a property is a noun",
    ]
    assert class_names((module, other)).keys() == {"A", "B"}
    assert duplicates((module, other)) == {"A": ["antiphon.keyed", "antiphon.keyed", "antiphon.x"]}
