"""A model that libllama has loaded: its facts, its vocabulary and its tokenizer, as Python values.

Nothing here computes with the weights; that is `libllama_context`. The vocabulary is constant after loading,
so all of this may run on any thread beside decoding.
"""

import ctypes
import os
from pathlib import Path

import numpy as np

from antiphon.engines.llama.libllama import Library
from antiphon.errors import LoadError

READ = 0
"""llama_load_mode of weights that are read into memory; by default they are mapped."""

PIECE_BYTES = 256
"""First guess at the length of one piece; longer ones are asked for again."""


class NativeModel:
    """A loaded model; owns the native one until `close`."""

    def __init__(
        self, library: Library, path: Path, check_tensors: bool = False, copied: bool = False
    ) -> None:
        """Loads the weights by mapping the file, or copies them into memory. Raises LoadError with the
        library's own last words."""
        self.library = library
        self._call = library.call
        params = self._call.llama_model_default_params()
        params.check_tensors = check_tensors
        if copied:
            params.load_mode = READ
        with library.log_captured() as log:
            self.pointer = self._call.llama_model_load_from_file(os.fsencode(path), params)
        if not self.pointer:
            raise LoadError(f"llama.cpp refused {path.name}: {log.errors() or 'it gave no reason'}.")
        self._vocabulary = self._call.llama_model_get_vocab(self.pointer)
        self.size = int(self._call.llama_vocab_n_tokens(self._vocabulary))
        """Number of token ids."""
        self._piece = ctypes.create_string_buffer(PIECE_BYTES)

    def close(self) -> None:
        """Frees the weights; contexts must be closed before."""
        if self.pointer:
            self._call.llama_model_free(self.pointer)
            self.pointer = None

    # --- facts

    def parameters(self) -> int:
        """Number of weights."""
        return int(self._call.llama_model_n_params(self.pointer))

    def weight(self) -> int:
        """Bytes of all tensors."""
        return int(self._call.llama_model_size(self.pointer))

    def trained_context(self) -> int:
        """Context length that the model was trained for."""
        return int(self._call.llama_model_n_ctx_train(self.pointer))

    def description(self) -> str:
        """Architecture, size and quantization as llama.cpp words them: `llama 1B Q8_0`."""
        buffer = ctypes.create_string_buffer(PIECE_BYTES)
        self._call.llama_model_desc(self.pointer, buffer, PIECE_BYTES)
        return buffer.value.decode("utf-8", "replace")

    def metadata(self, key: str) -> str | None:
        """A scalar of the file's metadata as text, cut at PIECE_BYTES; None when the file has none."""
        buffer = ctypes.create_string_buffer(PIECE_BYTES)
        found = self._call.llama_model_meta_val_str(self.pointer, key.encode(), buffer, PIECE_BYTES)
        return buffer.value.decode("utf-8", "replace") if found >= 0 else None

    def generates(self) -> bool:
        """Whether the model makes text token by token from a cache that can be trimmed at any position."""
        facts = ("has_encoder", "is_recurrent", "is_hybrid", "is_diffusion")
        return self._call.llama_model_has_decoder(self.pointer) and not any(
            getattr(self._call, f"llama_model_{fact}")(self.pointer) for fact in facts
        )

    def dimensions(self) -> int:
        """Numbers of the vector that the model makes of a text."""
        return int(self._call.llama_model_n_embd_out(self.pointer))

    def chat_template(self) -> str | None:
        """The default chat template's source."""
        found = self._call.llama_model_chat_template(self.pointer, None)
        return found.decode("utf-8", "replace") if found else None

    # --- vocabulary

    def piece(self, token: int) -> bytes:
        """What the token adds to a text; empty for control tokens."""
        buffer, size = self._piece, len(self._piece)
        length = self._call.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, False)
        if length < 0:
            self._piece = ctypes.create_string_buffer(-length)
            return self.piece(token)
        return buffer.raw[:length]

    def text(self, token: int) -> str:
        """The token as the vocabulary spells it: `</s>`, `▁the`."""
        return (self._call.llama_vocab_get_text(self._vocabulary, token) or b"").decode("utf-8", "replace")

    def attributes(self, token: int) -> int:
        """Bits of llama_token_attr."""
        return int(self._call.llama_vocab_get_attr(self._vocabulary, token))

    def ends(self, token: int) -> bool:
        """Whether generation ends with this token."""
        return bool(self._call.llama_vocab_is_eog(self._vocabulary, token))

    def vocabulary_type(self) -> int:
        """Kind of tokenizer, as llama_vocab_type."""
        return int(self._call.llama_vocab_type(self._vocabulary))

    def bos(self) -> int | None:
        """Beginning-of-sequence token."""
        return self._id(self._call.llama_vocab_bos(self._vocabulary))

    def eos(self) -> int | None:
        """End-of-sequence token."""
        return self._id(self._call.llama_vocab_eos(self._vocabulary))

    def adds_bos(self) -> bool:
        """Whether the tokenizer puts a BOS before a text."""
        return bool(self._call.llama_vocab_get_add_bos(self._vocabulary))

    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the tokenizer puts before and after a whole text: BERT's [CLS] and [SEP], a BOS, an EOS."""
        plain, whole = self.tokenize(b"a"), self.tokenize(b"a", whole=True)
        for at in range(len(whole) - len(plain) + 1):
            if whole[at : at + len(plain)] == plain:
                return tuple(whole[:at]), tuple(whole[at + len(plain) :])
        return tuple(whole[:1]) if self.adds_bos() else (), ()

    def tokenize(self, text: bytes, whole: bool = False) -> list[int]:
        """Token ids of UTF-8 text in which nothing is a control token. `whole`: with what stands before and
        after it."""
        if not text:
            return []
        room = len(text) + 16
        while True:
            ids = np.empty(room, dtype=np.int32)
            address = ctypes.c_void_p(ids.ctypes.data)
            count = self._call.llama_tokenize(self._vocabulary, text, len(text), address, room, whole, False)
            if count >= 0:
                return [int(token) for token in ids[:count]]
            room = -count

    @staticmethod
    def _id(token: int) -> int | None:
        return token if token >= 0 else None
