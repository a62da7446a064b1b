"""The committed pages and questions that the quality of retrieval is measured with.

The pages are of our own making: 200 in English and 100 in Chinese, on subjects of everyday life. Each
question has one page that answers it. Half of the questions use words of the page, the others use none.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parents[2] / "benchmarks" / "retrieval"


@dataclass(frozen=True, slots=True)
class QualityPage:
    """A short text that answers some questions."""

    id: str
    language: Literal["en", "zh"]
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class QualityQuestion:
    """A question, and the page that answers it."""

    page: str
    """The page's id."""
    kind: Literal["words", "paraphrase"]
    """A paraphrase shares no content word with its page."""
    question: str


def read_pages() -> list[QualityPage]:
    """All pages, by id."""
    return [QualityPage(**json.loads(line)) for line in _read_lines("pages.jsonl")]


def read_questions() -> list[QualityQuestion]:
    """All questions, by their pages' ids."""
    return [QualityQuestion(**json.loads(line)) for line in _read_lines("questions.jsonl")]


def _read_lines(name: str) -> list[str]:
    return (FOLDER / name).read_text("utf-8").splitlines()
