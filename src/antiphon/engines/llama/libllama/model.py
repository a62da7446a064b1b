"""A model that libllama has loaded: its facts, its vocabulary, its tokenizer and its LoRA adapters.

Nothing here computes with the weights; `context` does. The vocabulary does not change after loading, so any
thread may read it beside decoding. Adapters are not thread safe.
"""

import ctypes
import math
import os
import re
import unicodedata
from collections.abc import Sequence
from enum import IntFlag
from pathlib import Path

import numpy as np

from antiphon.engines.base import ControlTokens, InfillTokens, PairFrame, TextPiece, TokenKind, Vocabulary
from antiphon.engines.llama.libllama.library import Library
from antiphon.engines.llama.libllama.placement import ON_PROCESSOR, LayerPlacement
from antiphon.errors import DeviceMemoryExceeded, LoadError

LOAD_MODE_READ = 0
"""llama_load_mode of weights that are read into memory. Without it, the weights are mapped."""

ALLOCATION = re.compile(r"allocat|out of memory|OutOfDeviceMemory", re.IGNORECASE)
"""Words with which the library and its drivers report that an allocation failed."""

PIECE_BYTES = 256
"""The size in bytes of the first buffer for a piece. A longer piece is read again with a larger buffer."""

PlacementArrays = tuple["ctypes.Array[ctypes.c_void_p]", "ctypes.Array[ctypes.c_float]"]


def place_weights(library: Library, params: ctypes.Structure, placement: LayerPlacement) -> PlacementArrays:
    """Writes a placement into the parameters of a model. Returns the arrays to which the parameters point.

    The library gets the number of layers of each device as the device's share, from which it computes the
    same numbers. If the list of devices is empty, the library uses no device, not even for single operations.
    """
    used_devices = [
        (device, count) for device, count in zip(placement.devices, placement.counts, strict=False) if count
    ]
    pointers = [library.call.ggml_backend_dev_by_name(device.name.encode()) for device, _ in used_devices]
    devices = (ctypes.c_void_p * (len(used_devices) + 1))(*pointers, None)
    shares = (ctypes.c_float * max(library.call.llama_max_devices(), len(used_devices)))(
        *(count for _, count in used_devices)
    )
    params.devices = ctypes.addressof(devices)
    params.tensor_split = ctypes.addressof(shares)
    params.n_gpu_layers = placement.gpu_layer_count
    return devices, shares


class NativeModel:
    """A loaded model. It owns the native model until `close`."""

    def __init__(
        self,
        library: Library,
        path: Path,
        check_tensors: bool = False,
        copy_weights: bool = False,
        placement: LayerPlacement = ON_PROCESSOR,
    ) -> None:
        """Loads the weights by mapping the file, or copies them into memory; those of `placement` go to
        devices. Raises LoadError with the library's last error lines."""
        self.placement = placement
        self.library = library
        self.name = path.name
        self._call = library.call
        params = self._call.llama_model_default_params()
        params.check_tensors = check_tensors
        if copy_weights:
            params.load_mode = LOAD_MODE_READ
        arrays = place_weights(library, params, placement)
        with library.capture_log() as log:
            self.pointer = self._call.llama_model_load_from_file(os.fsencode(path), params)
        if not self.pointer:
            raise self.build_load_error(
                f"llama.cpp refused {path.name}: {log.join_errors() or 'it gave no reason'}."
            )
        del arrays  # the library has copied them
        self._vocabulary = self._call.llama_model_get_vocab(self.pointer)
        self.size = int(self._call.llama_vocab_n_tokens(self._vocabulary))
        """Number of token ids."""
        self._piece = ctypes.create_string_buffer(PIECE_BYTES)

    def build_load_error(self, message: str) -> LoadError:
        """Builds the error of a failed load: DeviceMemoryExceeded if layers are on devices and the message
        tells of a failed allocation, otherwise LoadError."""
        is_memory = self.placement.gpu_layer_count and ALLOCATION.search(message)
        return (DeviceMemoryExceeded if is_memory else LoadError)(message)

    def close(self) -> None:
        """Frees the weights; contexts must be closed before."""
        if self.pointer:
            self._call.llama_model_free(self.pointer)
            self.pointer = None

    # --- facts

    def count_parameters(self) -> int:
        """Number of weights."""
        return int(self._call.llama_model_n_params(self.pointer))

    def count_bytes(self) -> int:
        """Bytes of all tensors."""
        return int(self._call.llama_model_size(self.pointer))

    def get_trained_context(self) -> int:
        """Context length that the model was trained for."""
        return int(self._call.llama_model_n_ctx_train(self.pointer))

    def get_description(self) -> str:
        """Architecture, size and quantization as llama.cpp words them: `llama 1B Q8_0`."""
        buffer = ctypes.create_string_buffer(PIECE_BYTES)
        self._call.llama_model_desc(self.pointer, buffer, PIECE_BYTES)
        return buffer.value.decode("utf-8", "replace")

    def get_metadata(self, key: str) -> str | None:
        """A scalar of the file's metadata as text, cut at PIECE_BYTES. None if the file has no such key."""
        buffer = ctypes.create_string_buffer(PIECE_BYTES)
        length = self._call.llama_model_meta_val_str(self.pointer, key.encode(), buffer, PIECE_BYTES)
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def is_generative(self) -> bool:
        """Whether the model makes text token by token, with a cache that can be trimmed at any position."""
        other_kinds = ("has_encoder", "is_recurrent", "is_hybrid", "is_diffusion")
        return self._call.llama_model_has_decoder(self.pointer) and not any(
            getattr(self._call, f"llama_model_{kind}")(self.pointer) for kind in other_kinds
        )

    def get_dimensions(self) -> int:
        """The length of the vectors that the model makes."""
        return int(self._call.llama_model_n_embd_out(self.pointer))

    def count_classes(self) -> int:
        """The number of values that a classifier gives for a text."""
        return int(self._call.llama_model_n_cls_out(self.pointer))

    def get_chat_template(self, name: bytes | None = None) -> str | None:
        """The source of the chat template of this name; None is the default one."""
        source = self._call.llama_model_chat_template(self.pointer, name)
        return source.decode("utf-8", "replace") if source else None

    # --- vocabulary

    def get_piece(self, token: int) -> bytes:
        """The bytes that the token adds to a text; empty for control tokens."""
        buffer, size = self._piece, len(self._piece)
        length = self._call.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, False)
        if length < 0:
            self._piece = ctypes.create_string_buffer(-length)
            return self.get_piece(token)
        return buffer.raw[:length]

    def get_text(self, token: int) -> str:
        """The token as the vocabulary spells it, such as `</s>` or `▁the`."""
        return (self._call.llama_vocab_get_text(self._vocabulary, token) or b"").decode("utf-8", "replace")

    def get_attributes(self, token: int) -> int:
        """Bits of llama_token_attr."""
        return int(self._call.llama_vocab_get_attr(self._vocabulary, token))

    def is_end(self, token: int) -> bool:
        """Whether generation ends with this token."""
        return bool(self._call.llama_vocab_is_eog(self._vocabulary, token))

    def get_vocabulary_type(self) -> int:
        """Kind of tokenizer, as llama_vocab_type."""
        return int(self._call.llama_vocab_type(self._vocabulary))

    def get_bos(self) -> int | None:
        """Beginning-of-sequence token."""
        return self._to_optional(self._call.llama_vocab_bos(self._vocabulary))

    def get_eos(self) -> int | None:
        """End-of-sequence token."""
        return self._to_optional(self._call.llama_vocab_eos(self._vocabulary))

    def adds_bos(self) -> bool:
        """Whether the tokenizer puts a BOS before a text."""
        return bool(self._call.llama_vocab_get_add_bos(self._vocabulary))

    def find_infill_tokens(self) -> InfillTokens | None:
        """The tokens for filling in the middle; None if the model lacks one of them."""
        call, vocabulary = self._call, self._vocabulary
        functions = call.llama_vocab_fim_pre, call.llama_vocab_fim_suf, call.llama_vocab_fim_mid
        prefix, suffix, middle = (self._to_optional(function(vocabulary)) for function in functions)
        if prefix is None or suffix is None or middle is None:
            return None
        return InfillTokens(prefix, suffix, middle)

    def find_embedding_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The tokens that the tokenizer puts before and after a whole text: BERT's [CLS] and [SEP], a BOS, an
        EOS."""
        plain_ids, framed_ids = self.tokenize(b"a"), self.tokenize(b"a", adds_frame=True)
        for index in range(len(framed_ids) - len(plain_ids) + 1):
            if framed_ids[index : index + len(plain_ids)] == plain_ids:
                return tuple(framed_ids[:index]), tuple(framed_ids[index + len(plain_ids) :])
        return tuple(framed_ids[:1]) if self.adds_bos() else (), ()

    def find_pair_frame(self) -> PairFrame:
        """The tokens around the two texts of a pair, as rerankers are trained. The outer tokens are those
        around a whole text. Between the texts is an EOS, a separator, or both."""
        call, vocabulary = self._call, self._vocabulary
        before, after = self.find_embedding_frame()
        end, separator = self.get_eos(), self._to_optional(call.llama_vocab_sep(vocabulary))
        ends = (end,) if end is not None and call.llama_vocab_get_add_eos(vocabulary) else ()
        separators = (
            (separator,) if separator is not None and call.llama_vocab_get_add_sep(vocabulary) else ()
        )
        return PairFrame(before, (*ends, *separators), after)

    def tokenize(self, text: bytes, adds_frame: bool = False) -> list[int]:
        """The token ids of UTF-8 text without control tokens. `adds_frame`: whether to add the tokens that
        the tokenizer puts before and after a whole text."""
        if not text:
            return []
        capacity = len(text) + 16
        while True:
            ids = np.empty(capacity, dtype=np.int32)
            address = ctypes.c_void_p(ids.ctypes.data)
            count = self._call.llama_tokenize(
                self._vocabulary, text, len(text), address, capacity, adds_frame, False
            )
            if count >= 0:
                return [int(token) for token in ids[:count]]
            capacity = -count

    @staticmethod
    def _to_optional(token: int) -> int | None:
        """Converts the library's negative number for a missing token to None."""
        return token if token >= 0 else None


ALPHA = b"adapter.lora.alpha"
LONGEST_NUMBER = 64
"""The most bytes of a number as llama.cpp writes it."""


class NativeAdapter:
    """A native adapter. This object owns it until `close`. Close the adapter before its model, and never
    while a context uses the adapter."""

    def __init__(self, model: NativeModel, path: Path) -> None:
        """Raises LoadError with the library's reason."""
        self._call = model.library.call
        with model.library.capture_log() as log:
            self.pointer = self._call.llama_adapter_lora_init(model.pointer, os.fsencode(path))
        if not self.pointer:
            raise LoadError(
                f"llama.cpp refused the adapter {path.name}: {log.join_errors() or 'it gave no reason'}"
            )

        if self._call.llama_adapter_get_alora_n_invocation_tokens(self.pointer):
            self.close()
            raise LoadError(f"the adapter {path.name} is an activated LoRA, which is not served")
        if not 0 < (alpha := self._read_alpha()) < math.inf:
            self.close()
            raise LoadError(f"the adapter {path.name} has the alpha {alpha}; it must be a positive number")

    def _read_alpha(self) -> float:
        """Reads the adapter's alpha. The library multiplies the adapter's matrices by alpha over rank. NaN if
        the file has no alpha."""
        buffer = ctypes.create_string_buffer(LONGEST_NUMBER)
        self._call.llama_adapter_meta_val_str(self.pointer, ALPHA, buffer, LONGEST_NUMBER)
        try:
            return float(buffer.value)
        except ValueError:
            return math.nan

    def close(self) -> None:
        """Frees the adapter's matrices."""
        if self.pointer:
            self._call.llama_adapter_lora_free(self.pointer)
            self.pointer = None


def set_adapter(call: ctypes.CDLL, context: int, adapter: NativeAdapter | None, scale: float = 1.0) -> int:
    """Makes the context compute with this adapter, or with none, from the next decode on. Returns 0 on
    success."""
    if adapter is None:
        return int(call.llama_set_adapters_lora(context, None, 0, None))
    pointers = (ctypes.c_void_p * 1)(adapter.pointer)
    scales = (ctypes.c_float * 1)(scale)
    return int(call.llama_set_adapters_lora(context, pointers, 1, scales))


class TokenAttribute(IntFlag):
    """llama_token_attr."""

    UNKNOWN = 1
    UNUSED = 2
    NORMAL = 4
    CONTROL = 8
    USER_DEFINED = 16
    BYTE = 32
    NORMALIZED = 64
    LSTRIP = 128
    RSTRIP = 256
    SINGLE_WORD = 512


KINDS = {
    TokenAttribute.CONTROL: TokenKind.CONTROL,
    TokenAttribute.BYTE: TokenKind.BYTE,
    TokenAttribute.UNKNOWN: TokenKind.UNKNOWN,
    TokenAttribute.UNUSED: TokenKind.UNUSED,
}
"""The kind of a token, by the first of these attributes that it has. Tokens with none of them are normal."""

SENTENCE_PIECE = 1
"""llama_vocab_type of tokenizers that may put a space before a text."""

WORD_PIECE = 3
"""llama_vocab_type of BERT's tokenizers."""

SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"

LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"
"""Normalisations of BERT's tokenizers. A file without both keys has both; without the second key, the second
follows the first."""


def removes_accents(model: NativeModel) -> bool:
    """Whether the model's tokenizer removes accents before it splits a text into pieces."""
    if model.get_vocabulary_type() != WORD_PIECE:
        return False
    return (model.get_metadata(STRIP_ACCENTS) or model.get_metadata(LOWERCASE)) != "false"


def remove_accents(text: str) -> str:
    """Decomposes the characters and removes the accents, as BERT's tokenizers do.

    llama.cpp does it too, but keeps only the first part of a decomposed character. A Korean syllable would
    lose its vowel.
    """
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFD", text)
    accents = [ord(character) for character in set(decomposed) if unicodedata.category(character) == "Mn"]
    return decomposed.translate(dict.fromkeys(accents))


def find_kind(attributes: int) -> TokenKind:
    """Translates llama.cpp's token attributes to a `TokenKind`."""
    return next((kind for bit, kind in KINDS.items() if attributes & bit), TokenKind.NORMAL)


def read_vocabulary(model: NativeModel) -> Vocabulary:
    """Reads the whole vocabulary. This takes a fifth of a second for 128,000 ids."""
    ids = range(model.size)
    attributes = [model.get_attributes(token) for token in ids]
    kinds = tuple(find_kind(bits) for bits in attributes)
    control_tokens = [token for token in ids if kinds[token] is TokenKind.CONTROL]
    return Vocabulary(
        pieces=tuple(model.get_piece(token) for token in ids),
        kinds=kinds,
        names={token: model.get_text(token) for token in control_tokens},
        end_ids=tuple(token for token in ids if model.is_end(token)),
        bos_id=model.get_bos(),
        eos_id=model.get_eos(),
        add_bos=model.adds_bos(),
        space_prefix=model.get_vocabulary_type() == SENTENCE_PIECE
        and model.get_metadata(SPACE_PREFIX) != "false",
        embedding_frame=model.find_embedding_frame(),
        infill=model.find_infill_tokens(),
        pair_frame=model.find_pair_frame(),
    )


class NativeTokenizer:
    """Splits text at control tokens where that is allowed, and tokenizes the rest natively."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self._removes_accents = removes_accents(model)
        special = TokenAttribute.CONTROL | TokenAttribute.USER_DEFINED | TokenAttribute.UNKNOWN
        self._attributes = {token: model.get_attributes(token) for token in range(model.size)}
        ids = {model.get_text(token): token for token, bits in self._attributes.items() if bits & special}
        ids.pop("", None)
        self._controls = ControlTokens(ids)

    def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Token ids of the pieces joined to one text."""
        bos = self._model.get_bos()
        tokens = [bos] if add_bos and bos is not None else []
        text = ""
        strip_next = False
        for part in self._controls.split(pieces):
            if isinstance(part, str):
                text += part
                continue
            bits = self._attributes[part]
            tokens += self._tokenize_plain(text, strip_next, bool(bits & TokenAttribute.LSTRIP))
            tokens.append(part)
            text, strip_next = "", bool(bits & TokenAttribute.RSTRIP)
        return (*tokens, *self._tokenize_plain(text, strip_next, False))

    def _tokenize_plain(self, text: str, strip_left: bool, strip_right: bool) -> list[int]:
        """The ids of text without control tokens. `strip_left` and `strip_right`: whether the control token
        on that side of the text removes the spaces there."""
        text = text.lstrip() if strip_left else text
        text = text.rstrip() if strip_right else text
        text = remove_accents(text) if self._removes_accents else text
        return self._model.tokenize(text.encode("utf-8", "surrogatepass"))
