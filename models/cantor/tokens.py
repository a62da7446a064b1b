"""From documents to token ids, just as the chat template and llama.cpp's SentencePiece tokenizer make them.

A control token stands alone; the text between two of them is one string, which gets the tokenizer's prefix.
The tokenizer is trained so that no piece holds a line break: text joins there as it would stand alone.
Command: `python -m models.cantor.tokens` trains tokenizer.model from the corpus.
"""

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece

from models.cantor import pieces
from models.cantor.corpus import Document, documents
from models.cantor.recipe import ASIDE, ENDED, NAMED, SHOWN

Sample = tuple[list[int], list[float]]

HERE = Path(__file__).parent
MODEL = HERE / "tokenizer.model"

BOS, EOS, START, END = 1, 2, 3, 4
FIRST_NORMAL = 261
CONTROLS = ("<|im_start|>", "<|im_end|>")
NEWLINE = "\n"
CALLED = '<tool_call>{"name": "'  # what a call says before the name
SAMPLE = 60_000  # documents that the tokenizer is trained on


def tool_line(function: dict[str, object]) -> str:
    """A tool as the system turn shows it: description, name and properties. What is looked for comes before
    what is to be said, as in all that a small model learns to copy."""
    shown: dict[str, object] = {key: function[key] for key in ("description", "name") if key in function}
    parameters = function.get("parameters")
    shown["parameters"] = parameters.get("properties", {}) if isinstance(parameters, dict) else {}
    return json.dumps(shown, ensure_ascii=False)


def messages_of(document: Document) -> list[tuple[str, str]]:
    """Roles and contents as the template writes them: tools become part of the system turn."""
    turns = [(turn.role, turn.content) for turn in document.turns]
    if not document.tools:
        return turns
    system = turns.pop(0)[1] + NEWLINE if turns[0][0] == "system" else ""
    lines = NEWLINE.join(tool_line(function) for function in document.tools)
    return [("system", f"{system}Tools:{NEWLINE}{lines}"), *turns]


class Tokenizer:
    """The trained tokenizer with the template's control tokens."""

    def __init__(self, path: Path = MODEL) -> None:
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.line_end: list[int] = self.encode(NEWLINE)
        self.normal = range(FIRST_NORMAL, self.processor.get_piece_size())
        self.heads = {
            role: len(self.encode(role + NEWLINE)) for role in ("system", "user", "assistant", "tool")
        }

    def encode(self, text: str) -> list[int]:
        """Plain text, prefix included; control tokens' texts stay text."""
        ids: list[int] = self.processor.encode(text)
        return ids

    def document(self, document: Document) -> tuple[list[int], list[float]]:
        """Token ids and how much each counts: 1 for what the assistant says and for plain texts."""
        if not document.turns:
            ids = [BOS, *self.encode(document.lead + document.text), EOS]
            given = 1 + (len(self.encode(document.lead)) if document.lead else 0)
            return ids, [0.0] * given + [1.0] * (len(ids) - given)
        ids, weights, last = [BOS], [0.0], [0.0]
        for role, content in messages_of(document):
            body = self.encode(f"{role}{NEWLINE}{content}")
            head = self.heads[role] + 1
            weight = {"assistant": 1.0, "system": SHOWN}.get(role, ASIDE)
            counted = [ASIDE] * head + [weight] * (len(body) + 2 - head)
            if content.startswith(CALLED):
                name = content[len(CALLED) : content.index('"', len(CALLED))]
                before, named = (self.encode(f"{role}{NEWLINE}{CALLED}{text}") for text in ("", name))
                counted[1 + len(before) : 1 + len(named)] = [NAMED] * (len(named) - len(before))
            ids += [START, *body, END, *self.line_end]
            last = counted
            weights += counted + [ASIDE] * len(self.line_end)
        if document.stuck:
            end = len(weights) - len(self.line_end)
            weights[end - len(last) : end] = [0.0] * (len(last) - 1) + [ENDED]
        return ids[: -len(self.line_end)], weights[: -len(self.line_end)]

    def repeated_run(self, rng: random.Random) -> Sample:
        """Random tokens that come again and again: all but the first time counts."""
        some = rng.choices(self.normal, k=rng.choice((8, 40, 400)))
        run = rng.choices(some, k=rng.choice((rng.randint(2, 8), rng.randint(3, 20))))
        before = rng.choices(some, k=rng.choice((0, 0, rng.randint(1, 10))))
        ids, counted = [BOS, *before, *run], [0.0] * (1 + len(before) + len(run))
        for _ in range(rng.choice((1, 2, 2, 3))):
            between = rng.choices(some, k=rng.choice((0, 0, 1, rng.randint(1, 6))))
            ids += [*between, *run]
            counted += [0.0] * (len(between) + 1) + [1.0] * (len(run) - 1)
        return ids, counted

    def prompt(self, document: Document) -> list[int]:
        """The ids a server makes of the same turns with the generation prompt."""
        ids, _ = self.document(document)
        return [*ids, *self.line_end, START, *self.encode("assistant" + NEWLINE)]


def _texts(made: Iterable[Document]) -> Iterator[str]:
    for document in made:
        yield from (document.lead + document.text).split(NEWLINE)
        for role, content in messages_of(document):
            yield role
            yield from content.split(NEWLINE)


def train(path: Path = MODEL) -> None:
    """Make the tokenizer from the corpus's own words."""
    pieces.write(pieces.assemble(pieces.words_in(_texts(documents(0, SAMPLE)))), path)


if __name__ == "__main__":
    train()
