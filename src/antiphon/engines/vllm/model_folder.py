"""A folder of weights: its facts, its tokenizer and its vocabulary.

The facts are those of config.json, generation_config.json, tokenizer_config.json and the chat template.
Reading them needs no library and reads no weights. The tokenizer uses the library `tokenizers`, which is
imported when it is loaded.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.domain.request import SamplingOptions
from antiphon.domain.values import Struct
from antiphon.engines.base import ControlTokens, TextPiece, TokenKind, Vocabulary
from antiphon.errors import ModelFileError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


WEIGHTS = "*.safetensors"
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION_CONFIG, TEMPLATE = "generation_config.json", "chat_template.jinja"

MAX_BYTES = 64 * 1024 * 1024
"""The most bytes of one JSON file. The largest tokenizers have about 35 MB."""

GENERATIVE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""The endings of the names of architectures that generate text."""

DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


class ModelFolder(Struct, frozen=True):
    """A folder of weights, as Hugging Face's libraries save it."""

    path: Path
    architecture: str
    context_length: int
    """The context length that the model was trained for, in tokens."""
    size: int
    """Bytes of the files of weights."""
    parameters: int
    """The number of weights."""
    dtype: str
    """The number format of the weights; float32 if the configuration names no known one."""
    end_ids: tuple[int, ...]
    """The end-of-generation tokens."""
    sampling: SamplingOptions
    """The recommended sampling values."""
    chat_template: str | None
    values_per_token: int | None
    """The number of values that a plain KV cache stores for each token; None if the configuration does not
    tell it."""


def read_folder(path: Path) -> ModelFolder:
    """Reads the facts of a folder. Raises ModelFileError, which names the missing or broken file."""
    if not path.is_dir():
        raise ModelFileError(
            f"{path} is no folder; vLLM serves a folder with {CONFIG}, {TOKENIZER} and {WEIGHTS}"
        )
    for pattern in (CONFIG, TOKENIZER, WEIGHTS):
        if not any(path.glob(pattern)):
            raise ModelFileError(f"{path} has no {pattern}; vLLM serves a folder that has it")
    config = _read_json(path / CONFIG)
    text_config = config.get("text_config")
    config = {**config, **text_config} if isinstance(text_config, dict) else config
    generation = _read_json(path / GENERATION_CONFIG)
    _require_generative(path, config.get("architectures"))
    return ModelFolder(
        path=path,
        architecture=str(config.get("model_type", "unknown")),
        context_length=_read_count(config, "max_position_embeddings") or 2048,
        size=sum(file.stat().st_size for file in path.glob(WEIGHTS)),
        parameters=sum(map(_count_parameters, path.glob(WEIGHTS))),
        dtype=_read_dtype(config),
        end_ids=tuple(dict.fromkeys([*_list_ids(generation), *_list_ids(config)])),
        sampling=_read_sampling(generation),
        chat_template=_read_template(path),
        values_per_token=_count_values_per_token(config),
    )


def _require_generative(path: Path, architectures: object) -> None:
    """Raises ModelFileError for a model that does not make tokens."""
    names = [str(name) for name in architectures] if isinstance(architectures, list) else []
    if not any(name.endswith(GENERATIVE) for name in names):
        architecture_names = ", ".join(names) or "no architecture"
        raise ModelFileError(
            f"{path.name} cannot be served by vLLM here: it names {architecture_names}, which makes no "
            "text; convert an embedding model to GGUF"
        )


def read_tokenizer_config(path: Path) -> dict[str, object]:
    """Reads tokenizer_config.json. Returns an empty object if there is no such file. Raises
    ModelFileError."""
    return _read_json(path / TOKENIZER_CONFIG)


def _read_json(path: Path) -> dict[str, object]:
    """Reads a JSON object from a file. Returns an empty one if there is no such file. Raises
    ModelFileError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelFileError(f"{path} has more than {MAX_BYTES:,} bytes")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {os.strerror(problem.errno or 0)}") from None
    except (ValueError, RecursionError):
        raise ModelFileError(f"{path} is no valid JSON") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object")
    return value


def _count_parameters(path: Path) -> int:
    """Counts the weights of one file by its header. Raises ModelFileError."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, MAX_BYTES)))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {os.strerror(problem.errno or 0)}") from None
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise ModelFileError(f"{path} is no file of safetensors") from None


def _read_count(config: Mapping[str, object], name: str) -> int:
    """Reads a positive integer; 0 if there is none."""
    value = config.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _read_dtype(config: Mapping[str, object]) -> str:
    """Reads the number format of the weights."""
    value = config.get("dtype") or config.get("torch_dtype")
    return value if isinstance(value, str) and value in DTYPE_BYTES else "float32"


def _list_ids(config: Mapping[str, object]) -> Iterator[int]:
    """Yields the end tokens of a configuration."""
    value = config.get("eos_token_id")
    for token_id in value if isinstance(value, list) else [value]:
        if isinstance(token_id, int):
            yield token_id


def _read_sampling(generation: Mapping[str, object]) -> SamplingOptions:
    """Reads the recommended sampling values that a request may use."""

    def read_value(name: str, maximum: float) -> float | None:
        value = generation.get(name)
        return float(value) if isinstance(value, int | float) and 0 <= value <= maximum else None

    return SamplingOptions(
        temperature=read_value("temperature", 2.0),
        top_p=read_value("top_p", 1.0),
        top_k=_read_count(generation, "top_k") or None,
        min_p=read_value("min_p", 1.0),
    )


def _read_template(path: Path) -> str | None:
    """Reads the chat template. Raises ModelFileError."""
    try:
        return (path / TEMPLATE).read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError):
        raise ModelFileError(f"cannot read {path / TEMPLATE} as UTF-8") from None
    template = read_tokenizer_config(path).get("chat_template")
    if isinstance(template, list):  # several templates, each with a name
        templates = {
            entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)
        }
        template = templates.get("default")
    return template if isinstance(template, str) else None


def _count_values_per_token(config: Mapping[str, object]) -> int | None:
    """Counts the values that a plain KV cache stores for each token: the keys and values of all layers."""
    layers, heads = _read_count(config, "num_hidden_layers"), _read_count(config, "num_attention_heads")
    head_width = _read_count(config, "head_dim") or (
        _read_count(config, "hidden_size") // heads if heads else 0
    )
    kv_heads = _read_count(config, "num_key_value_heads") or heads
    return 2 * layers * kv_heads * head_width or None


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
