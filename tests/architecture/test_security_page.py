"""The page on security names tests that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
ROW = re.compile(r"^\|(?! rule |---)", re.MULTILINE)


def named(text: str) -> list[tuple[str, str]]:
    return NAMED.findall(text)


def is_there(file: str, test: str) -> bool:
    path = ROOT / file
    return (
        path.is_file()
        and re.search(rf"def {test + '[(]' if test else 'test_'}", path.read_text("utf-8")) is not None
    )


def test_every_rule_names_tests_that_are_there() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if ROW.match(line)]
    assert len(rows) >= 14
    for row in rows:
        assert named(row), row
        assert [each for each in named(row) if not is_there(*each)] == []


def test_a_test_that_is_gone_is_found() -> None:
    assert named("`tests/architecture/source.py::none`, `tests/a.py`") == [
        ("tests/architecture/source.py", "none"),
        ("tests/a.py", ""),
    ]
    assert is_there("tests/architecture/source.py", "expect_none")
    assert not is_there("tests/architecture/source.py", "expect") and not is_there("tests/a.py", "")
