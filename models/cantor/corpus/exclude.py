"""What the corpus must not hold: held-out questions and runs of eight words of one, known by hashes alone.

`leakage.py` writes excluded.txt from the held-out set; nobody who writes templates has to read that set.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.cantor.corpus.grammar import HERE

RUN = 8  # words in a run
WORD = re.compile(r"[a-z0-9]+")
PRODUCT = frozenset(
    "antiphon cantor openai llama cpp gguf vllm llguidance starlette msgspec uvicorn python apache".split()
)


def words_of(text: str) -> list[str]:
    """Lower-case words and numbers, marks dropped."""
    return WORD.findall(text.lower())


def digest(words: list[str]) -> str:
    """The name a sequence of words has in excluded.txt."""
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


def runs(words: list[str]) -> Iterator[list[str]]:
    """Every run of eight words that is not product names alone."""
    for start in range(len(words) - RUN + 1):
        run = words[start : start + RUN]
        if not PRODUCT.issuperset(run):
            yield run


@dataclass(frozen=True, slots=True)
class Excluded:
    """Hashes of whole questions and of runs of words."""

    wholes: frozenset[str]
    pieces: frozenset[str]

    @classmethod
    def load(cls, path: Path = HERE / "excluded.txt") -> "Excluded":
        """Read the hashes; an absent file excludes nothing."""
        lines = path.read_text().split("\n") if path.exists() else []
        rows = [line.split() for line in lines if line and not line.startswith("#")]
        return cls(
            frozenset(row[1] for row in rows if row[0] == "whole"),
            frozenset(row[1] for row in rows if row[0] == "run"),
        )

    def touches(self, *texts: str) -> bool:
        """Whether a text is an excluded question or holds an excluded run."""
        if not self.wholes and not self.pieces:
            return False
        for text in texts:
            words = words_of(text)
            if digest(words) in self.wholes or any(digest(run) in self.pieces for run in runs(words)):
                return True
        return False
