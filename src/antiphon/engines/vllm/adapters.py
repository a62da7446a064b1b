"""The adapters that vLLM computes with, each by the digest of its content.

vLLM reads an adapter's file again whenever the adapter was evicted from memory, and would end if that failed.
So each adapter is checked, copied into the engine's own directory and loaded once before a sequence uses it.
"""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, UnsupportedParameter

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

MAX_RANK = 64
"""The largest rank of an adapter. vLLM allocates memory for adapters of this rank at its start."""

MAX_LORAS = 4
"""The most different adapters in one step; sequences of further adapters wait."""

MAX_CPU_LORAS = 32
"""The most adapters that vLLM keeps in memory; others are read again when they are needed."""

CONFIG, CONTENT = "adapter_config.json", "adapter_model.safetensors"
METADATA = "__metadata__"
MAX_HEADER = 16 * 1024 * 1024
"""The most bytes of the header of an adapter."""


class LoraClient(Protocol):
    """Loads and unloads adapters. AsyncLLM implements it."""

    def add_lora(self, lora_request: "LoRARequest") -> Awaitable[bool]: ...
    def remove_lora(self, lora_id: int) -> Awaitable[bool]: ...


class VllmAdapter(Struct):
    """An adapter that vLLM has loaded."""

    request: "LoRARequest"
    is_removed: bool = False
    """Whether new sequences may not use it, so that it is unloaded after its last sequence."""


class AdapterTable:
    """All adapters of one engine. It belongs to one event loop."""

    def __init__(
        self,
        loader: LoraClient | None,
        directory: Path,
        make_request: Callable[[str, int, str], "LoRARequest"],
    ) -> None:
        """`loader`: None if vLLM was started without adapters. `make_request`: makes vLLM's request from an
        adapter's digest, vLLM's id for it, and the path of its folder."""
        self._loader = loader
        self._directory = directory
        self._make_request = make_request
        self._lora_ids = itertools.count(1)
        self._adapters: dict[str, VllmAdapter] = {}
        self.users: Counter[str] = Counter()
        """The number of queued and running sequences of each adapter."""

    async def add(self, digest: str, path: str) -> None:
        """Makes an adapter usable, unless it is usable already. Raises InvalidValue if vLLM cannot use it,
        and UnsupportedParameter if vLLM was started without adapters."""
        if self._loader is None:
            raise UnsupportedParameter("this model was loaded without adapters", param="model")
        if digest in self._adapters:
            self._adapters[digest].is_removed = False
            return
        folder = self._directory / digest
        unpack_adapter(Path(path), folder)
        request = self._make_request(digest, next(self._lora_ids), str(folder))
        try:
            await self._loader.add_lora(request)
        except Exception as problem:  # noqa: BLE001 - vLLM raises exceptions of any kind
            shutil.rmtree(folder, ignore_errors=True)
            raise InvalidValue(f"vLLM cannot use the adapter: {problem}"[:300], param="model") from None
        self._adapters[digest] = VllmAdapter(request)

    async def remove(self, digest: str) -> None:
        """Refuses an adapter to new sequences, and unloads it after its last sequence."""
        if (adapter := self._adapters.get(digest)) is not None:
            adapter.is_removed = True
            await self._unload_if_unused(digest)

    @asynccontextmanager
    async def use(self, digest: str | None) -> AsyncIterator["LoRARequest | None"]:
        """Yields the adapter of a sequence, or None for the base model. The adapter stays loaded while the
        context lasts. Raises InvalidValue."""
        if digest is None:
            yield None
            return
        adapter = self._adapters.get(digest)
        if adapter is None or adapter.is_removed:
            raise InvalidValue(f"the adapter {digest} is not loaded", param="model")
        self.users[digest] += 1
        try:
            yield adapter.request
        finally:
            self.users[digest] -= 1
            await self._unload_if_unused(digest)

    async def _unload_if_unused(self, digest: str) -> None:
        """Unloads an adapter if it is removed and no sequence uses it."""
        adapter = self._adapters.get(digest)
        if self._loader is None or adapter is None or not adapter.is_removed or self.users[digest]:
            return
        del self._adapters[digest], self.users[digest]
        await self._loader.remove_lora(adapter.request.lora_int_id)
        shutil.rmtree(self._directory / digest, ignore_errors=True)


def unpack_adapter(path: Path, folder: Path) -> None:
    """Writes an adapter's folder in PEFT's format from a safetensors file whose metadata contains the
    configuration. Raises InvalidValue."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MAX_HEADER else None
        config = json.loads(header[METADATA][CONFIG]) if isinstance(header, dict) else None
        rank = config.get("r") if isinstance(config, dict) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        config = rank = None
    if not isinstance(rank, int):
        raise InvalidValue(f"the adapter {path.name} cannot be read", param="model")
    if not 1 <= rank <= MAX_RANK:
        raise InvalidValue(f"the adapter has the rank {rank}; vLLM takes 1 to {MAX_RANK} here", param="model")
    try:
        folder.mkdir(exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(config), "utf-8")
        shutil.copyfile(path, folder / CONTENT)
    except OSError as problem:
        raise InvalidValue(f"the adapter cannot be copied: {problem.strerror}", param="model") from None
