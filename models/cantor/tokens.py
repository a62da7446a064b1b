"""Converts documents to the token ids that the chat template and llama.cpp's SentencePiece tokenizer give.

A control token is one token. The text between two control tokens is encoded as one string with the
tokenizer's prefix. No piece contains a line break, so texts can be encoded line by line.
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

BOS_ID, EOS_ID, TURN_START_ID, TURN_END_ID = 1, 2, 3, 4
FIRST_NORMAL = 261
CONTROLS = ("<|im_start|>", "<|im_end|>")
NEWLINE = "\n"
CALL_PREFIX = '<tool_call>{"name": "'
TRAINING_DOCUMENTS = 60_000  # for the tokenizer


def render_tool(function: dict[str, object]) -> str:
    """Renders a tool for the system turn: description, name and properties.

    The description precedes the name, because a small model finds the text to copy after the text to match.
    """
    tool: dict[str, object] = {key: function[key] for key in ("description", "name") if key in function}
    parameters = function.get("parameters")
    tool["parameters"] = parameters.get("properties", {}) if isinstance(parameters, dict) else {}
    return json.dumps(tool, ensure_ascii=False)


def list_messages(document: Document) -> list[tuple[str, str]]:
    """Returns roles and contents as the template renders them, with the tools in the system turn."""
    turns = [(turn.role, turn.content) for turn in document.turns]
    if not document.tools:
        return turns
    system_text = turns.pop(0)[1] + NEWLINE if turns[0][0] == "system" else ""
    lines = NEWLINE.join(render_tool(function) for function in document.tools)
    return [("system", f"{system_text}Tools:{NEWLINE}{lines}"), *turns]


class Tokenizer:
    """The trained tokenizer with the template's control tokens."""

    def __init__(self, path: Path = MODEL) -> None:
        self.processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.newline_ids: list[int] = self.encode(NEWLINE)
        self.normal_ids = range(FIRST_NORMAL, self.processor.get_piece_size())
        self.role_head_lengths = {
            role: len(self.encode(role + NEWLINE)) for role in ("system", "user", "assistant", "tool")
        }

    def encode(self, text: str) -> list[int]:
        """Encodes plain text with the prefix; texts of control tokens are encoded as text."""
        ids: list[int] = self.processor.encode(text)
        return ids

    def document(self, document: Document) -> tuple[list[int], list[float]]:
        """Returns token ids and their loss weights; answers and plain texts have weight 1."""
        if not document.turns:
            ids = [BOS_ID, *self.encode(document.lead + document.text), EOS_ID]
            lead_length = 1 + (len(self.encode(document.lead)) if document.lead else 0)
            return ids, [0.0] * lead_length + [1.0] * (len(ids) - lead_length)
        ids, weights, last_weights = [BOS_ID], [0.0], [0.0]
        for role, content in list_messages(document):
            turn_ids = self.encode(f"{role}{NEWLINE}{content}")
            head_length = self.role_head_lengths[role] + 1
            weight = {"assistant": 1.0, "system": SHOWN}.get(role, ASIDE)
            turn_weights = [ASIDE] * head_length + [weight] * (len(turn_ids) + 2 - head_length)
            if content.startswith(CALL_PREFIX):
                name = content[len(CALL_PREFIX) : content.index('"', len(CALL_PREFIX))]
                prefix_ids, named_ids = (
                    self.encode(f"{role}{NEWLINE}{CALL_PREFIX}{text}") for text in ("", name)
                )
                turn_weights[1 + len(prefix_ids) : 1 + len(named_ids)] = [NAMED] * (
                    len(named_ids) - len(prefix_ids)
                )
            ids += [TURN_START_ID, *turn_ids, TURN_END_ID, *self.newline_ids]
            last_weights = turn_weights
            weights += turn_weights + [ASIDE] * len(self.newline_ids)
        if document.stuck:
            end = len(weights) - len(self.newline_ids)
            weights[end - len(last_weights) : end] = [0.0] * (len(last_weights) - 1) + [ENDED]
        return ids[: -len(self.newline_ids)], weights[: -len(self.newline_ids)]

    def repeated_run(self, rng: random.Random) -> Sample:
        """Draws a random run of tokens and repeats it; only the repetitions have loss weights."""
        candidates = rng.choices(self.normal_ids, k=rng.choice((8, 40, 400)))
        run = rng.choices(candidates, k=rng.choice((rng.randint(2, 8), rng.randint(3, 20))))
        prefix = rng.choices(candidates, k=rng.choice((0, 0, rng.randint(1, 10))))
        ids, weights = [BOS_ID, *prefix, *run], [0.0] * (1 + len(prefix) + len(run))
        for _ in range(rng.choice((1, 2, 2, 3))):
            separator = rng.choices(candidates, k=rng.choice((0, 0, 1, rng.randint(1, 6))))
            ids += [*separator, *run]
            weights += [0.0] * (len(separator) + 1) + [1.0] * (len(run) - 1)
        return ids, weights

    def prompt(self, document: Document) -> list[int]:
        """Returns the ids of the document's turns, followed by the generation prompt."""
        ids, _ = self.document(document)
        return [*ids, *self.newline_ids, TURN_START_ID, *self.encode("assistant" + NEWLINE)]


def _list_texts(corpus_documents: Iterable[Document]) -> Iterator[str]:
    for document in corpus_documents:
        yield from (document.lead + document.text).split(NEWLINE)
        for role, content in list_messages(document):
            yield role
            yield from content.split(NEWLINE)


def train_tokenizer(path: Path = MODEL) -> None:
    """Trains the tokenizer on the corpus and writes it."""
    pieces.write_pieces(
        pieces.assemble_pieces(pieces.count_words(_list_texts(documents(0, TRAINING_DOCUMENTS)))), path
    )


if __name__ == "__main__":
    train_tokenizer()
