"""Checks that the corpus contains no held-out question and no eight-word run of one. Prints counts and ids
only.

`python -m models.cantor.leakage` checks every document of the training mixture. With `--write` it first
writes corpus/excluded.txt, whose hashes the corpus uses to skip such documents.
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


def load_held_out(folder: Path = HELDOUT) -> dict[str, list[str]]:
    """Returns the user messages of the held-out set by row id."""
    rows = (
        json.loads(line)
        for name in FILES
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
    )
    return {
        row["id"]: [turn["content"] for turn in row["messages"] if turn["role"] == "user"] for row in rows
    }


def hash_texts(texts: Iterable[str]) -> Excluded:
    """Returns the hashes of whole texts and of their eight-word runs."""
    word_lists = [words_of(text) for text in texts]
    return Excluded(
        frozenset(digest(words) for words in word_lists),
        frozenset(digest(run) for words in word_lists for run in runs(words)),
    )


def count_leaks(corpus_documents: Iterable[Document], rows: dict[str, list[str]]) -> dict[str, int]:
    """Counts the documents that share a text or run with each held-out row, by id; rows without any are
    absent."""
    ids_by_text, ids_by_run = _index_rows(rows)
    leaks_by_id: Counter[str] = Counter()
    for document in corpus_documents:
        matching_ids: set[str] = set()
        for text in (document.lead + document.text, *(turn.content for turn in document.turns)):
            words = words_of(text)
            matching_ids |= ids_by_text.get(" ".join(words), set())
            for run in runs(words):
                matching_ids |= ids_by_run.get(" ".join(run), set())
        leaks_by_id.update(matching_ids)
    return dict(leaks_by_id)


def _index_rows(rows: dict[str, list[str]]) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Returns row ids by whole text, and row ids by eight-word run."""
    ids_by_text: dict[str, set[str]] = {}
    ids_by_run: dict[str, set[str]] = {}
    for row_id, texts in rows.items():
        for words in map(words_of, texts):
            ids_by_text.setdefault(" ".join(words), set()).add(row_id)
            for run in runs(words):
                ids_by_run.setdefault(" ".join(run), set()).add(row_id)
    return ids_by_text, ids_by_run


def write_hashes(path: Path = CORPUS / "excluded.txt") -> None:
    """Writes the hashes of the held-out set."""
    excluded = hash_texts(text for texts in load_held_out().values() for text in texts)
    lines = sorted(f"whole {text_hash}" for text_hash in excluded.wholes) + sorted(
        f"run {text_hash}" for text_hash in excluded.pieces
    )
    path.write_text(HEADER + "\n".join(lines) + "\n")


def main() -> None:
    """Checks the corpus, and first writes the hashes if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write corpus/excluded.txt")
    parser.add_argument(
        "--unfiltered", action="store_true", help="check the documents of the grammars without the exclusions"
    )
    arguments = parser.parse_args()
    if arguments.write:
        write_hashes()
    exclusions = Excluded(frozenset(), frozenset()) if arguments.unfiltered else None
    corpus_documents = (
        document
        for leg in LEGS
        for document in documents(leg.seed, leg.documents, exclusions, mixture=leg.mixture)
    )
    leaks_by_id = count_leaks(corpus_documents, load_held_out())
    document_count = sum(leg.documents for leg in LEGS)
    print(
        f"{sum(leaks_by_id.values())} leaking documents of {document_count}, {len(leaks_by_id)} rows: "
        f"{sorted(leaks_by_id)}"
    )
    raise SystemExit(1 if leaks_by_id else 0)


if __name__ == "__main__":
    main()
