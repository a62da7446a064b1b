"""Is a held-out question, or a run of eight words of one, in the corpus? Prints counts and ids, never a text.

`python -m models.cantor.leakage` checks every document that training may see; with `--write` it first writes
corpus/excluded.txt, the hashes by which the corpus leaves such documents out.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from models.cantor.corpus import Document, documents
from models.cantor.corpus.exclude import Excluded, digest, runs, words_of
from models.cantor.corpus.grammar import HERE as CORPUS
from models.cantor.recipe import LEGS

HELDOUT = Path(__file__).parent / "heldout"
FILES = ("questions.jsonl", "new_questions.jsonl", "tools.jsonl", "others.jsonl")
HEADER = "# Hashes of held-out questions and their eight-word runs; made by leakage.py for exclude.py.\n"


def held_out(folder: Path = HELDOUT) -> dict[str, list[str]]:
    """What users say in the held-out set, by the row's id."""
    rows = (
        json.loads(line)
        for name in FILES
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
    )
    return {
        row["id"]: [turn["content"] for turn in row["messages"] if turn["role"] == "user"] for row in rows
    }


def hashes(texts: Iterable[str]) -> Excluded:
    """The hashes of whole texts and of their runs."""
    words = [words_of(text) for text in texts]
    return Excluded(
        frozenset(digest(each) for each in words),
        frozenset(digest(run) for each in words for run in runs(each)),
    )


def leaks(made: Iterable[Document], rows: dict[str, list[str]]) -> dict[str, int]:
    """How many documents touch each held-out row, by its id; rows without a leak are absent."""
    wholes, pieces = _index(rows)
    found: Counter[str] = Counter()
    for document in made:
        touched: set[str] = set()
        for text in (document.lead + document.text, *(turn.content for turn in document.turns)):
            words = words_of(text)
            touched |= wholes.get(" ".join(words), set())
            for run in runs(words):
                touched |= pieces.get(" ".join(run), set())
        found.update(touched)
    return dict(found)


def _index(rows: dict[str, list[str]]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The ids of the rows that hold a text, and of those that hold a run of eight words."""
    wholes: dict[str, set[str]] = {}
    pieces: dict[str, set[str]] = {}
    for name, texts in rows.items():
        for words in map(words_of, texts):
            wholes.setdefault(" ".join(words), set()).add(name)
            for run in runs(words):
                pieces.setdefault(" ".join(run), set()).add(name)
    return wholes, pieces


def write(path: Path = CORPUS / "excluded.txt") -> None:
    """Write the hashes of the held-out set."""
    excluded = hashes(text for texts in held_out().values() for text in texts)
    lines = sorted(f"whole {name}" for name in excluded.wholes) + sorted(
        f"run {name}" for name in excluded.pieces
    )
    path.write_text(HEADER + "\n".join(lines) + "\n")


def main() -> None:
    """Check, or write the hashes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write corpus/excluded.txt")
    parser.add_argument(
        "--unfiltered", action="store_true", help="check what the grammars would make without it"
    )
    arguments = parser.parse_args()
    if arguments.write:
        write()
    excluded = Excluded(frozenset(), frozenset()) if arguments.unfiltered else None
    made = (
        document
        for leg in LEGS
        for document in documents(leg.seed, leg.documents, excluded, mixture=leg.mixture)
    )
    found = leaks(made, held_out())
    drawn = sum(leg.documents for leg in LEGS)
    print(f"{sum(found.values())} leaking documents of {drawn}, {len(found)} rows: {sorted(found)}")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
