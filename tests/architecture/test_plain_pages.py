"""Pages are in plain sentences: few are long. CONTRIBUTING.md has the rule."""

import re
from collections.abc import Iterator

from tests.support.docs import FENCE, PAGES, ROOT

LONG = 28
"""Words above which a sentence is long."""

MOST = 0.05
"""The share of long sentences that a page can have. A short page can have two."""

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")
END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*\[(])")


def list_sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a page: of paragraphs, items of lists, and cells of tables."""
    for block in re.split(r"\n\s*\n", FENCE.sub("", COMMENT.sub("", text))):
        units: list[str] = []
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            if line.startswith("|"):
                units += line.strip("|").split("|")
            elif ITEM.match(line) or not units:
                units.append(ITEM.sub("", line, count=1))
            else:
                units[-1] += " " + line.strip()
        for unit in units:
            yield from (each for each in END.split(unit.strip()) if each)


def test_few_sentences_are_long():
    crowded = {}
    for page in PAGES:
        sentences = list(list_sentences(page.read_text("utf-8")))
        long = [each for each in sentences if len(each.split()) > LONG]
        if len(long) > max(2, MOST * len(sentences)):
            crowded[page.name] = long
    assert not crowded


def test_sentences_are_told_apart():
    text = "# Title\n\nOne. Two goes\non here.\n\n- Three\n- Four: `five`.\n\n```sh\nno\n```\n"
    assert list(list_sentences(text)) == ["One.", "Two goes on here.", "Three", "Four:", "`five`."]


CUT = re.compile(r"([^|]*[,;]) *\|")
"""A cell of a table that stops in the middle of a sentence."""


def list_cut_cells(text: str) -> list[str]:
    rows = [line for line in FENCE.sub("", text).splitlines() if line.startswith("|")]
    return [cell.strip() for row in rows for cell in CUT.findall(row.replace(r"\|", ""))]


def test_no_cell_of_a_table_ends_in_the_middle():
    cut = {page.name: found for page in PAGES if (found := list_cut_cells(page.read_text("utf-8")))}
    assert not cut


def test_a_cut_cell_is_found():
    assert list_cut_cells("| a, b | each token,  |\n| c \\| d; e | f; |\n") == ["each token,", "f;"]


def test_every_meaning_of_an_error_is_a_sentence():
    rows = re.findall(r"^\| \d+ \|.*$", (ROOT / "docs/errors.md").read_text("utf-8"), re.MULTILINE)
    assert len(rows) > 40
    assert not [row for row in rows if not row.split("|")[3].rstrip().endswith(".")]
