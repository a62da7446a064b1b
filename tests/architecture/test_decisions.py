"""The table of decisions lists every note, and links between pages lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTES = ROOT / "docs" / "decisions"
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_the_table_lists_every_note() -> None:
    table = (NOTES / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| (merged into )?\[([\w.-]+)\]", table, re.MULTILINE)
    numbers = [int(number) for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    listed = [name for number, merged, name in rows if not merged and int(name[:4]) == int(number)]
    assert listed == sorted(path.name for path in NOTES.glob("0*.md"))


def test_links_of_notes_and_root_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *NOTES.glob("*.md")]:
        broken = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
        assert broken == [], page.name
