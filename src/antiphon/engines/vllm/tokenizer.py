"""The tokenizer of a folder of weights and its vocabulary. It uses the library `tokenizers`."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from antiphon.engines.base import ControlTokens, TextPiece, TokenKind, Vocabulary
from antiphon.errors import ModelFileError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

from antiphon.engines.vllm.folder import TOKENIZER, ModelFolder, read_tokenizer_config

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""A piece that means one byte, in SentencePiece's vocabularies."""

SPACE = "▁"
"""The character for a space in SentencePiece's vocabularies."""

PROBE = "a"


class FolderTokenizer:
    """Tokenizes text. Any thread may use it."""

    def __init__(self, folder: ModelFolder, size: int) -> None:
        """`size`: the number of the model's token ids. The tokenizer may have fewer. Raises
        ModelFileError."""
        self._folder = folder
        self._size = size
        path = folder.path / TOKENIZER
        try:
            settings = json.loads(path.read_bytes())
            self._uses_byte_letters = any(iterate_steps(settings.get("decoder"), "ByteLevel"))
            self._unknown = get_unknown_piece(settings.get("model"))
            self._first_tokenizer = load_tokenizer(settings)
            self._later_tokenizer = load_later_tokenizer(settings)
        except Exception as problem:  # noqa: BLE001 - the library raises plain exceptions
            raise ModelFileError(f"{path} cannot be used: {problem}") from None
        self._added_tokens: dict[int, AddedToken] = self._first_tokenizer.get_added_tokens_decoder()
        ids = {token.content: index for index, token in self._added_tokens.items() if token.content}
        self._controls = ControlTokens(ids)

    def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """The token ids of the pieces joined to one text."""
        tokens = [self.bos_id] if add_bos and self.bos_id is not None else []
        text, strip_next, is_first = "", False, True
        for part in self._controls.split(pieces):
            if isinstance(part, str):
                text += part
                continue
            token = self._added_tokens[part]
            tokens += self._encode(text, is_first, (strip_next, token.lstrip))
            tokens.append(part)
            text, strip_next, is_first = "", token.rstrip, False
        return (*tokens, *self._encode(text, is_first, (strip_next, False)))

    def tokenize_bytes(self, text: bytes) -> list[int]:
        """The token ids of a text without control tokens. Bytes that are not UTF-8 give no ids."""
        try:
            return self._encode(text.decode(), True, (False, False))
        except UnicodeDecodeError:
            return []

    def _encode(self, text: str, is_first: bool, strips: tuple[bool, bool]) -> list[int]:
        """The ids of a text between two control tokens. `is_first`: whether the text begins the prompt.
        `strips`: whether the control token before the text, and the one after it, remove spaces."""
        text = text.lstrip() if strips[0] else text
        text = text.rstrip() if strips[1] else text
        if not text:
            return []
        tokenizer = self._first_tokenizer if is_first else self._later_tokenizer
        # The library refuses a lone half of a surrogate pair.
        valid_text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = tokenizer.encode(valid_text, add_special_tokens=False).ids
        return ids

    @cached_property
    def bos_id(self) -> int | None:
        """The BOS that tokenizer_config.json names."""
        return self._find_named_token("bos_token")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The table of ids."""
        texts = {
            index: text for text, index in self._first_tokenizer.get_vocab(with_added_tokens=True).items()
        }
        kinds = tuple(self._find_kind(index, texts) for index in range(self._size))
        pieces = tuple(
            self._spell(index, texts) if kind in (TokenKind.NORMAL, TokenKind.BYTE) else b""
            for index, kind in enumerate(kinds)
        )
        probe = b"".join(pieces[token] for token in self._encode(PROBE, True, (False, False)))
        with_specials = self._first_tokenizer.encode(PROBE, add_special_tokens=True).ids
        return Vocabulary(
            pieces=pieces,
            kinds=kinds,
            names={index: texts[index] for index, kind in enumerate(kinds) if kind is TokenKind.CONTROL},
            end_ids=tuple(token for token in self._folder.end_ids if 0 <= token < self._size),
            bos_id=self.bos_id,
            eos_id=self._find_named_token("eos_token"),
            add_bos=self.bos_id is not None and with_specials[:1] == [self.bos_id],
            space_prefix=probe.startswith(b" "),
        )

    def _find_named_token(self, name: str) -> int | None:
        """The id of a token that tokenizer_config.json names."""
        entry = read_tokenizer_config(self._folder.path).get(name)
        text = entry.get("content") if isinstance(entry, dict) else entry
        token_id = self._first_tokenizer.token_to_id(text) if isinstance(text, str) else None
        return token_id if token_id is not None and token_id < self._size else None

    def _find_kind(self, index: int, texts: Mapping[int, str]) -> TokenKind:
        if index not in texts:
            return TokenKind.UNUSED
        if texts[index] == self._unknown:
            return TokenKind.UNKNOWN
        if index in self._added_tokens and self._added_tokens[index].special:
            return TokenKind.CONTROL
        return TokenKind.BYTE if BYTE_PIECE.fullmatch(texts[index]) else TokenKind.NORMAL

    def _spell(self, index: int, texts: Mapping[int, str]) -> bytes:
        """The bytes that a token adds to a text."""
        text = texts[index]
        if index in self._added_tokens:
            return text.encode()
        if self._uses_byte_letters:
            return bytes(BYTE_OF_LETTER[letter] for letter in text if letter in BYTE_OF_LETTER)
        if match := BYTE_PIECE.fullmatch(text):
            return bytes([int(match[1], 16)])
        return text.replace(SPACE, " ").encode()


def load_tokenizer(settings: object) -> "Tokenizer":
    """Makes a tokenizer that does not turn text into special tokens. Raises the library's exceptions."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def iterate_steps(step: object, kind: str) -> Iterator[dict[str, object]]:
    """Yields the steps of this kind in a part of tokenizer.json, nested ones included."""
    if isinstance(step, dict):
        if step.get("type") == kind:
            yield step
        for value in step.values():
            yield from iterate_steps(value, kind)
    elif isinstance(step, list):
        for value in step:
            yield from iterate_steps(value, kind)


def load_later_tokenizer(settings: dict[str, object]) -> "Tokenizer":
    """Makes the tokenizer for texts after a control token. Some tokenizers put a space only before the first
    text."""
    for step in iterate_steps(settings.get("pre_tokenizer"), "Metaspace"):
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
    return load_tokenizer(settings)


def get_unknown_piece(model: object) -> object:
    """The piece for unknown characters."""
    return model.get("unk_token") if isinstance(model, dict) else None


def _map_byte_letters() -> dict[str, int]:
    """Maps each letter of a byte-level vocabulary to its byte. Printable bytes are their own letters, and the
    other bytes are the letters from 256 on (Radford and others, 2019)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + offset): byte for offset, byte in enumerate(unprintable)
    }


BYTE_OF_LETTER = _map_byte_letters()
