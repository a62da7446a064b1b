"""What the decode loop needs of a context of the library, so that tests can stand in for it, and how a call's
rows come into it and out again.
"""

from array import array
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.llama.adapter_cache import AdapterCache
from antiphon.engines.llama.cells import Change, Copy
from antiphon.engines.llama.plans import Call
from antiphon.engines.llama.sampling import Drawing, Drawn
from antiphon.errors import AntiphonError

Logits = NDArray[np.float32]


class Computing(Protocol):
    """What the loop needs of a context; `NativeContext` says what each does."""

    @property
    def shelf(self) -> AdapterCache: ...
    def set_singles(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None: ...
    def set_rows(
        self, at: int, tokens: "array[int]", position: int, sequence: int, output: bool, every: bool
    ) -> None: ...
    def decode(self, rows: int) -> int: ...
    def logits(self, rows: int) -> Logits: ...
    def remove(self, sequence: int, start: int = 0) -> None: ...
    def clear(self) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


class Drawer(Protocol):
    """What the loop needs of a sampler; `Sampler` says what it does."""

    def draw(self, logits: Logits, drawings: list[Drawing | None]) -> list[Drawn | AntiphonError | None]: ...


def change(context: Computing, changes: list[Change]) -> None:
    """Carries out what a layout ordered."""
    for one in changes:
        if isinstance(one, Copy):
            context.copy(one.source, one.target, one.length)
        else:
            context.remove(one.id, one.start)


def fill(context: Computing, call: Call) -> int:
    """Writes the call's rows into the batch; how many they are."""
    at = len(call.ids)
    if at:
        context.set_singles(call.tokens, call.positions, call.ids)
    for span in call.spans:
        sequence = span.sequence
        tokens = sequence.tokens[span.start : span.stop]
        context.set_rows(at, tokens, span.start, sequence.seat, span.logits or call.watched, span.scored)
        at += span.stop - span.start
    return at


def empty(context: Computing, call: Call) -> None:
    """Frees what a call left in the cache that was not computed whole."""
    for seat, position in zip(call.ids, call.positions, strict=True):
        context.remove(seat, position)
    for span in call.spans:
        if span.sequence.id is not None:
            context.remove(span.sequence.id, span.start)
