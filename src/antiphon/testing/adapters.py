"""The adapters of a scripted token engine: known by digest, with no weights behind them. Each makes the toy
model another one, so that its tokens show which adapter computed them.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphon.engines.base import Vocabulary
from antiphon.errors import InvalidValue
from antiphon.testing.toy import ToyModel


class ScriptedAdapters:
    """Which adapters there are, who runs with them, and what the toy model is with each."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.paths: dict[str, str] = {}
        """Of those that new sequences may name, by digest."""
        self.unfit: set[str] = set()
        """Digests that are refused, as a library refuses a file."""
        self.running: Counter[str] = Counter()
        """Sequences, by digest; also of adapters that were removed."""
        self._vocabulary = vocabulary
        self._toys: dict[str | None, ToyModel] = {}

    def add(self, digest: str, path: str) -> None:
        if digest in self.unfit:
            raise InvalidValue("the library refuses the adapter", param="adapter")
        if not Path(path).is_file():
            raise InvalidValue(f"the adapter {Path(path).name} cannot be read", param="adapter")
        self.paths[digest] = path

    def remove(self, digest: str) -> None:
        self.paths.pop(digest, None)

    @contextmanager
    def use(self, digest: str | None) -> Iterator[None]:
        """While a sequence runs with it. Raises InvalidValue for one that is not there."""
        if digest is None:
            yield
            return
        if digest not in self.paths:
            raise InvalidValue(f"the engine has no adapter {digest!r}", param="adapter")
        self.running[digest] += 1
        try:
            yield
        finally:
            self.running[digest] -= 1

    def toy(self, digest: str | None) -> ToyModel:
        """The toy model, computing with an adapter."""
        if digest not in self._toys:
            self._toys[digest] = ToyModel(self._vocabulary, digest or "")
        return self._toys[digest]
