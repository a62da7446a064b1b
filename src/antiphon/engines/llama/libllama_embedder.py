"""A llama_context that makes vectors of texts. Each text is a sequence of its own, and nothing of it is kept.

Like `NativeContext`, which it is, it decides nothing and is not thread safe but for `abort` and `resume`. A
model that is not causal needs all of a text in one pass through the network; a causal one takes a text that
is longer than a pass in parts.
"""

import ctypes
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.embedding import Pooling
from antiphon.engines.llama.libllama import Library
from antiphon.engines.llama.libllama_context import ContextShape, Decoded, NativeContext
from antiphon.engines.llama.libllama_model import NativeModel
from antiphon.errors import EngineError, LibraryError

POOLING = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
"""llama_pooling_type, as the files have it too."""
UNPOOLED, RANKING = 0, 4

Vector = NDArray[np.float32]


class NativeEmbedder(NativeContext):
    """Owns a native context until `close`."""

    def __init__(self, model: NativeModel, shape: ContextShape, pooling: Pooling) -> None:
        """`shape.rows` must hold a whole text unless the model is causal. Raises as `NativeContext` does."""
        self._pooling = pooling
        self._wanted = next(number for number, name in POOLING.items() if name is pooling)
        self._dimensions = model.dimensions()
        super().__init__(model, shape)

    def _params(self, library: Library) -> ctypes.Structure:
        params = super()._params(library)
        for name, value in {"embeddings": True, "pooling_type": self._wanted}.items():
            setattr(params, name, value)
        return params

    def _check(self, library: Library) -> None:
        super()._check(library)
        pooling = self._call.llama_pooling_type(self.pointer)
        if pooling != self._wanted:
            self.close()
            raise LibraryError(f"{library.path} pools by {pooling} where {self._wanted} was asked for")

    def compute(self, texts: Sequence["array[int]"]) -> tuple[int, Vector]:
        """A `Decoded` or a negative number, and the pooled rows of the texts as (texts, dimensions); they
        mean nothing unless it is DONE.

        Several texts have at most `shape.rows` tokens together; one alone may have more, of a causal model.
        """
        if len(texts) == 1 and len(texts[0]) > self.shape.rows:
            return self._in_parts(texts[0])
        at = 0
        for seat, text in enumerate(texts):
            self.set_rows(at, text, 0, seat, True, every=True)
            at += len(text)
        found = np.zeros((len(texts), self._dimensions), np.float32)
        try:
            status = self.decode(at)
            if status == Decoded.DONE:
                for seat in range(len(texts)):
                    found[seat] = self._read_pooled(seat)
        finally:
            self._forget(len(texts))
        return status, found

    def _in_parts(self, text: "array[int]") -> tuple[int, Vector]:
        """One long text: a part's rows see those before it by the cache, so only the pooling is left to do
        over the parts."""
        found = np.zeros((1, self._dimensions), np.float32)
        status: int = Decoded.DONE
        try:
            for start in range(0, len(text), self.shape.rows):
                part = text[start : start + self.shape.rows]
                self.set_rows(0, part, start, 0, True, every=True)
                status = self.decode(len(part))
                if status != Decoded.DONE:
                    break
                match self._pooling:
                    case Pooling.MEAN:
                        found[0] += self._read_pooled(0) * (len(part) / len(text))
                    case Pooling.LAST:
                        found[0] = self._read_pooled(0)
                    case Pooling.CLS if start == 0:
                        found[0] = self._read_pooled(0)
        finally:
            self._forget(1)
        return status, found

    def _read_pooled(self, seat: int) -> Vector:
        address = self._call.llama_get_embeddings_seq(self.pointer, seat)
        if not address:
            raise EngineError("the library gave no vector for a text that it computed")
        return np.ctypeslib.as_array((ctypes.c_float * self._dimensions).from_address(address))

    def _forget(self, seats: int) -> None:
        """Empties the cache, where the model has one."""
        if self._memory:
            for seat in range(seats):
                self.remove(seat)
