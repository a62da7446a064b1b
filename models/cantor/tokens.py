"""From documents to token ids, just as the chat template and llama.cpp's SentencePiece tokenizer make them.

A control token stands alone; the text between two of them is one string, which gets the tokenizer's prefix.
The tokenizer is trained so that no piece holds a line break: text joins there as it would stand alone.
Command: `python -m models.cantor.tokens` trains tokenizer.model from the corpus.
"""

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece

from models.cantor.corpus import Document, documents
from models.cantor.recipe import ASIDE, VOCABULARY

HERE = Path(__file__).parent
MODEL = HERE / "tokenizer.model"

BOS, EOS, START, END = 1, 2, 3, 4
CONTROLS = ("<|im_start|>", "<|im_end|>")
NEWLINE = "\n"
SAMPLE = 60_000  # documents that the tokenizer is trained on


def tool_line(function: dict[str, object]) -> str:
    """A tool as the system turn shows it: name, description and properties."""
    shown: dict[str, object] = {key: function[key] for key in ("name", "description") if key in function}
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
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.line_end: list[int] = self.encode(NEWLINE)
        self.heads = {
            role: len(self.encode(role + NEWLINE)) for role in ("system", "user", "assistant", "tool")
        }

    def encode(self, text: str) -> list[int]:
        """Plain text, prefix included; control tokens' texts stay text."""
        ids: list[int] = self.pieces.encode(text)
        return ids

    def document(self, document: Document) -> tuple[list[int], list[float]]:
        """Token ids and how much each counts: 1 for what the assistant says and for plain texts."""
        if not document.turns:
            ids = [BOS, *self.encode(document.lead + document.text), EOS]
            given = 1 + (len(self.encode(document.lead)) if document.lead else 0)
            return ids, [0.0] * given + [1.0] * (len(ids) - given)
        ids, weights = [BOS], [0.0]
        for role, content in messages_of(document):
            body = self.encode(f"{role}{NEWLINE}{content}")
            head = self.heads[role] + 1
            weight = 1.0 if role == "assistant" else ASIDE
            ids += [START, *body, END, *self.line_end]
            weights += [ASIDE] * head + [weight] * (len(body) + 2 - head) + [ASIDE] * len(self.line_end)
        return ids[: -len(self.line_end)], weights[: -len(self.line_end)]

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
    """Train the tokenizer on the corpus's own text."""
    ascii_letters = "".join(chr(code) for code in range(33, 127))
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text for text in _texts(documents(0, SAMPLE)) if text),
        model_writer=made,
        model_type="bpe",
        vocab_size=VOCABULARY,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        control_symbols=list(CONTROLS),
        unk_id=0,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=-1,
        character_coverage=1.0,
        required_chars=ascii_letters,
        max_sentencepiece_length=16,
        minloglevel=1,
        num_threads=2,
    )
    path.write_bytes(made.getvalue())


if __name__ == "__main__":
    train()
