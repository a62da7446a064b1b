"""Each rule of the page on security has tests, which docs/security-tests.md names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULES = ROOT / "docs" / "security.md"
TESTS = ROOT / "docs" / "security-tests.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
ROW = re.compile(r"^\| (?!rule )([^|]+?) \|(.*)\|$", re.MULTILINE)
RULE = re.compile(r"^- (.+?)\.$", re.MULTILINE)


def named(text: str) -> list[tuple[str, str]]:
    return NAMED.findall(text)


def read_rows() -> list[tuple[str, str]]:
    """Reads the rules with the rest of their rows."""
    return ROW.findall(TESTS.read_text("utf-8"))


def read_rules() -> list[str]:
    """Reads the rules of the page for users."""
    rules = RULES.read_text("utf-8").partition("## Input")[2].partition("## Known limits")[0]
    return RULE.findall(rules)


def is_there(file: str, test: str) -> bool:
    path = ROOT / file
    return (
        path.is_file()
        and re.search(rf"def {test + '[(]' if test else 'test_'}", path.read_text("utf-8")) is not None
    )


def test_every_rule_names_tests_that_are_there() -> None:
    rows = read_rows()
    assert len(rows) >= 14
    for rule, tests in rows:
        assert named(tests), rule
        assert [each for each in named(tests) if not is_there(*each)] == []


def test_both_pages_have_the_same_rules() -> None:
    assert read_rules() == [rule for rule, _ in read_rows()]


def test_a_test_that_is_gone_is_found() -> None:
    assert named("`tests/architecture/source.py::none`, `tests/a.py`") == [
        ("tests/architecture/source.py", "none"),
        ("tests/a.py", ""),
    ]
    assert is_there("tests/architecture/source.py", "expect_none")
    assert not is_there("tests/architecture/source.py", "expect") and not is_there("tests/a.py", "")
