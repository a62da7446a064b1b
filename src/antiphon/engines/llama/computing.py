"""What the decode loop needs of a context of the library, so that tests can stand in for it."""

from array import array
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.llama.sampling import Drawing, Drawn
from antiphon.errors import AntiphonError

Logits = NDArray[np.float32]


class Computing(Protocol):
    """What the loop needs of a context; `NativeContext` says what each does."""

    def set_singles(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None: ...
    def set_rows(
        self, at: int, tokens: "array[int]", position: int, sequence: int, output: bool, every: bool
    ) -> None: ...
    def decode(self, rows: int) -> int: ...
    def logits(self, rows: int) -> Logits: ...
    def remove(self, sequence: int, start: int = 0) -> None: ...
    def copy(self, source: int, target: int, length: int) -> None: ...
    def abort(self) -> None: ...
    def resume(self) -> None: ...


class Drawer(Protocol):
    """What the loop needs of a sampler; `Sampler` says what it does."""

    def draw(self, logits: Logits, drawings: list[Drawing | None]) -> list[Drawn | AntiphonError | None]: ...
