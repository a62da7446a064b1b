"""Adapters as models: loads, replaces and unloads them while requests run. This module knows names; the
adapter store knows files, and engines know digests.

A name exists from the moment its engine has the adapter until it is unloaded. After that, new requests get
"no such model", and running requests finish as before. One content can have several names; the engine
releases it with the last one. All processes of a server have the same names: every process knows a change
before it is answered. Names end with the server. The next server has those of its settings again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from antiphon.domain.context import Clock
from antiphon.domain.models import Adapter, DeployedAdapter
from antiphon.engines.base import AdapterEngine, Engine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute, describe_missing_model
from antiphon.errors import (
    EngineUnavailable,
    InvalidValue,
    LoadError,
    MissingParameter,
    ModelNotFound,
    UnsupportedParameter,
)
from antiphon.processes.ipc import from_line, to_line
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics

MAX_ADAPTERS = 2048
"""Most names at once. Each is an entry of /v1/models and several series of /metrics."""

KeepAdapter = Callable[[str, Path | None], Awaitable[Adapter]]
"""Checks the files at a path that a caller sent, and stores them by digest. The second argument is the one
allowed directory; None allows the operator's directories. Raises InvalidValue for `lora_path`, and
PermissionDenied."""


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """A base model that takes adapters."""

    engine: AdapterEngine
    keep: KeepAdapter
    create_engine: Callable[[str], Engine]
    """Makes the engine that computes with the adapter of a digest."""
    note_adapters: Callable[[Mapping[str, str]], None] = lambda _: None
    """Called with all adapters of the engine, as paths by digest, including adapters that other processes
    added."""
    note_unloaded: Callable[[str, str], None] = lambda *_: None
    """Called with the digest of a named adapter that the engine refused, and the reason. The engine is asked
    again later."""


@dataclass(frozen=True, slots=True)
class AdapterRequest:
    """An adapter that a caller wants to load."""

    name: str
    path: str
    base: str | None = None
    """Name of the base model; None means the only one."""
    in_place: bool = False
    """Whether it can replace an adapter with the same name."""
    directory: Path | None = None
    """The one allowed directory; None allows the operator's directories."""
    may_use: Callable[[str], bool] = lambda _: True
    """Whether the caller can see a base model."""
    deployed: Callable[[str], DeployedAdapter] | None = None
    """Makes the record of a deployment from the base model's name."""


@dataclass(frozen=True, slots=True)
class AdapterName:
    """A name, as processes exchange it."""

    name: str
    base: str
    adapter: Adapter
    created: int
    deployed: DeployedAdapter | None = None


class SharedNames(Protocol):
    """The adapter names that all processes of a server share."""

    @property
    def revision(self) -> int:
        """The revision of the names that this process knows; 0 if none were published yet."""

    async def publish(self, revision: int, names: bytes) -> bool:
        """Replaces the names of a revision. When it returns True, every process has the new names. Returns
        False if another process has published first. Raises EngineError."""


@runtime_checkable
class Closable(Protocol):
    """An engine that can be closed without waiting."""

    def close(self) -> None: ...


class AdapterRegistry:
    """The adapters of one server."""

    def __init__(
        self,
        models: ModelRegistry,
        targets: Mapping[str, AdapterTarget],
        clock: Clock,
        metrics: Metrics,
        shared: SharedNames | None = None,
    ) -> None:
        """`targets`: by the base model's name. `shared`: None if there is no other process."""
        self._models = models
        self._targets = targets
        self._clock = clock
        self._metrics = metrics
        self._shared = shared
        self._file_lock = asyncio.Lock()
        """Held while files are read, because reading takes time and memory: one adapter at a time."""
        self._change_lock = asyncio.Lock()
        """Held while names and engines change, so that changes happen one after another."""

    @property
    def bases(self) -> tuple[str, ...]:
        """Names of the models that take adapters."""
        return tuple(self._targets)

    def declare(self, name: str, base: str, adapter: Adapter) -> None:
        """Adds a name from the settings before its engine has the adapter. Requests for the name wait until
        the engine has it. Raises LoadError if the model takes no adapters."""
        if base not in self._targets:
            raise LoadError(f"the adapter {name} cannot be served: the model {base} takes no adapters")
        self._add_model(name, base, adapter)

    async def prepare_target(self, base: str, target: AdapterTarget) -> None:
        """Gives the adapters of a base model to another engine. Raises InvalidValue or an EngineError."""
        for model in tuple(self._adapters_of(base)):
            if model.adapter is not None:
                await target.engine.add_adapter(model.adapter.digest, model.adapter.path)

    def replace_targets(self, targets: Mapping[str, AdapterTarget], same: Collection[str]) -> None:
        """Replaces the base models. Adapters of one that is gone lose their names in this process. `same`:
        base models whose engine is as before."""
        same_targets = {name: self._targets[name] for name in same if name in self._targets}
        self._targets = {**targets, **same_targets}
        for model in self._models.list_adapters():
            base = model.parent or ""
            if base in same_targets or model.adapter is None:
                continue
            self._remove_model(model)
            if base in self._targets:
                self._add_model(model.name, base, model.adapter, model.deployed, model.created)
            else:
                self._metrics.forget(model.name)
        self._note_adapters()

    async def restore(self, base: str) -> None:
        """Gives all named adapters to the engine of a base model. Raises EngineUnavailable. If the engine
        refuses an adapter while the server starts, raises InvalidValue. Later a refused adapter makes only
        its own requests fail, until the engine takes it."""
        for model in tuple(self._adapters_of(base)):
            if model.adapter is None:
                continue
            digest = model.adapter.digest
            try:
                await self._targets[base].engine.add_adapter(digest, model.adapter.path)
            except InvalidValue as refused:
                if self._shared is None or not self._shared.revision:
                    raise InvalidValue(
                        f"the adapter {model.name} cannot be served: {refused.message}", param="lora_path"
                    ) from None
                self._targets[base].note_unloaded(digest, refused.message)

    async def publish_settings(self) -> None:
        """Publishes the names of the settings once they are served."""
        if self._shared is not None and not self._shared.revision:
            await self._publish(self._collect_names())

    async def load(self, adapter_request: AdapterRequest) -> None:
        """Makes an adapter a model. The same content can be loaded under the same name again. The call then
        also gives the adapter to an engine that could not load it after a restart.

        Raises InvalidValue, MissingParameter, ModelNotFound or an EngineError, and changes nothing then.
        """
        base, target = self._find_target(adapter_request.base, adapter_request.may_use)
        self._require_free(adapter_request)
        async with self._file_lock:
            adapter = await target.keep(adapter_request.path, adapter_request.directory)
        async with self._change_lock:
            while not await self._load(adapter_request, base, adapter):
                pass  # another process was first, and this process now knows the change of the other one

    async def _load(self, adapter_request: AdapterRequest, base: str, adapter: Adapter) -> bool:
        """Gives the adapter to the engine, and publishes its name. Returns False if another process changed
        the names first."""
        self._require_free(adapter_request)
        before = self._models.get(adapter_request.name) if adapter_request.name in self._models else None
        again = before is not None and _is_same(before, base, adapter)
        if before is not None and not again and not adapter_request.in_place:
            raise InvalidValue(
                f"the adapter {adapter_request.name!r} is loaded already, with other content; send "
                "load_inplace true to put this in its place, or unload it first",
                param="lora_name",
            )
        try:
            await self._targets[base].engine.add_adapter(adapter.digest, adapter.path)
        except InvalidValue as refused:
            raise InvalidValue(refused.message, param="lora_path") from None
        deployed = adapter_request.deployed and adapter_request.deployed(base)
        if again and deployed is None:
            return True
        adapter_name = AdapterName(adapter_request.name, base, adapter, int(self._clock.wall()), deployed)
        if not await self._publish(self._collect_names() | {adapter_request.name: adapter_name}):
            return False
        record("adapter_loaded", name=adapter_request.name, base=base, digest=adapter.digest)
        if before is not None and not again:
            await self._release_adapter(before)
        return True

    async def unload(self, name: str) -> None:
        """Removes a name at once. Running requests finish. Raises ModelNotFound, or InvalidValue for a base
        model."""
        async with self._change_lock:
            while True:
                model = self._models.get(name) if name in self._models else None
                if model is None:
                    raise ModelNotFound(
                        f"the adapter {name[:100]!r} cannot be found; /v1/models lists what is loaded",
                        param="lora_name",
                    )
                if model.parent is None:
                    raise InvalidValue(
                        f"{name!r} is a base model; only adapters are unloaded", param="lora_name"
                    )
                names = self._collect_names()
                del names[name]
                if await self._publish(names):
                    break
            record("adapter_unloaded", name=name, base=model.parent)
            await self._release_adapter(model)

    def update_names(self, names: bytes) -> None:
        """Applies the names that this or another process has published."""
        self._apply_names(
            {adapter_name.name: adapter_name for adapter_name in from_line(names, tuple[AdapterName, ...])}
        )

    def _apply_names(self, there: Mapping[str, AdapterName]) -> None:
        """Makes this process serve these names: removes other models and adds missing ones."""
        for model in self._models.list_adapters():
            adapter_name = there.get(model.name)
            if adapter_name is None or not self._is_served(adapter_name):
                self._remove_model(model)
            if adapter_name is None:
                self._metrics.forget(model.name)
        for adapter_name in there.values():
            if adapter_name.base in self._targets and not self._is_served(adapter_name):
                self._add_model(
                    adapter_name.name,
                    adapter_name.base,
                    adapter_name.adapter,
                    adapter_name.deployed,
                    adapter_name.created,
                )
        self._note_adapters()

    def _remove_model(self, model: Model) -> None:
        """Removes an adapter's name in this process."""
        self._models.remove(model)
        if isinstance(model.engine, Closable):
            model.engine.close()

    def _note_adapters(self) -> None:
        """Tells each base model's engine its adapters."""
        for base, target in self._targets.items():
            target.note_adapters(
                {
                    model.adapter.digest: model.adapter.path
                    for model in self._adapters_of(base)
                    if model.adapter
                }
            )

    def _is_served(self, adapter_name: AdapterName) -> bool:
        """Whether the name has the same adapter and the same deployment in this process."""
        if adapter_name.name not in self._models:
            return False
        model = self._models.get(adapter_name.name)
        return (
            _is_same(model, adapter_name.base, adapter_name.adapter)
            and model.deployed == adapter_name.deployed
        )

    def _collect_names(self) -> dict[str, AdapterName]:
        """Returns the current names of all adapters."""
        return {
            model.name: AdapterName(model.name, model.parent, model.adapter, model.created, model.deployed)
            for model in self._models.list_adapters()
            if model.parent is not None and model.adapter is not None
        }

    async def _publish(self, names: Mapping[str, AdapterName]) -> bool:
        """Makes every process serve these names. Returns False if another process changed the names first.
        Raises EngineError if the other processes cannot be told, and changes nothing then."""
        if self._shared is None:
            self._apply_names(names)
            return True
        return await self._shared.publish(self._shared.revision, to_line(tuple(names.values())))

    def _add_model(
        self,
        name: str,
        base: str,
        adapter: Adapter,
        deployed: DeployedAdapter | None = None,
        created: int | None = None,
    ) -> None:
        """Adds a model for an adapter's name in this process."""
        kind = self._models.get(base).routes[0].kind
        routes = (ModelRoute(self._targets[base].create_engine(adapter.digest), kind),)
        created = int(self._clock.wall()) if created is None else created
        self._models.put(Model(name, routes, created, base, adapter, deployed))

    async def _release_adapter(self, gone: Model) -> None:
        """Removes an adapter from its engine if no name needs the adapter any more. Does nothing if the
        engine is not available."""
        await gone.engine.aclose()
        if gone.parent is None or gone.adapter is None:
            return
        digest = gone.adapter.digest
        if any(_has_digest(model, digest) for model in self._adapters_of(gone.parent)):
            return
        with suppress(EngineUnavailable):
            await self._targets[gone.parent].engine.remove_adapter(digest)

    def _adapters_of(self, base: str) -> Iterable[Model]:
        """Yields the models that are adapters of a base model."""
        return (model for model in self._models.list_adapters() if model.parent == base)

    def _find_target(self, name: str | None, may_use: Callable[[str], bool]) -> tuple[str, AdapterTarget]:
        """Returns the base model for an adapter, with its name. Raises MissingParameter, ModelNotFound or
        UnsupportedParameter."""
        if name is None:
            if len(self._targets) == 1:
                return next(iter(self._targets.items()))
            base_names = ", ".join(filter(may_use, self._targets)) or "none"
            raise MissingParameter(
                f"base_model_name is missing; models that take adapters: {base_names}",
                param="base_model_name",
            )
        if not may_use(name):
            raise ModelNotFound(describe_missing_model(name), param="base_model_name")
        if name not in self._targets:
            try:
                model = self._models.get(name, may_use)
            except ModelNotFound as refusal:
                raise ModelNotFound(refusal.message, param="base_model_name") from None
            raise UnsupportedParameter(f"{model.name} takes no adapters", param="base_model_name")
        return name, self._targets[name]

    def require_no_alias(self, name: str) -> None:
        """Raises InvalidValue if the name is an alias, because its callers would get this adapter instead."""
        if self._models.is_alias(name):
            raise InvalidValue(f"{name!r} is an alias here; choose another name", param="lora_name")

    def _require_free(self, adapter_request: AdapterRequest) -> None:
        """Raises InvalidValue for a name that no adapter can have, before any file is read."""
        if adapter_request.name in self._models:
            if self._models.get(adapter_request.name).parent is None:
                raise InvalidValue(
                    f"{adapter_request.name!r} is a base model's name; choose another", param="lora_name"
                )
            return
        self.require_no_alias(adapter_request.name)
        if len(self._models.list_adapters()) >= MAX_ADAPTERS:
            record("adapters_full", logging.WARNING, most=MAX_ADAPTERS)
            raise InvalidValue(
                f"{MAX_ADAPTERS:,} adapters are loaded, which is the most; unload one first",
                param="lora_name",
            )


def _is_same(model: Model, base: str, adapter: Adapter) -> bool:
    """Whether the model is this adapter of this base model."""
    return model.parent == base and _has_digest(model, adapter.digest)


def _has_digest(model: Model, digest: str) -> bool:
    return model.adapter is not None and model.adapter.digest == digest
