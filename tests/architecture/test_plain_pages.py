"""Pages are in plain sentences: few are long. CONTRIBUTING.md has the rule."""

import re
from collections.abc import Iterator

from tests.support.docs import FENCE, PAGES

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
