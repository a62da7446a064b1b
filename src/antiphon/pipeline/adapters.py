"""Adapters as models: loads, replaces and unloads them while requests run. Knows names; files are the
keeper's, and engines know digests.

A name is there from the moment its engine has the adapter until it is unloaded: new requests are then told
that there is no such model, and those that run with it end as they would have. The same content may have
several names; its engine lets go of it with the last. The processes of a server have the same names: each
change is known in all of them before it is answered. They end with the server, and those that the settings
give are back with the next.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from antiphon.domain.adapter import Adapter
from antiphon.domain.context import Clock
from antiphon.domain.deployment import Deployed
from antiphon.engines.base import Adapting, Engine
from antiphon.engines.registry import Model, ModelRoute, Models, absent
from antiphon.errors import (
    EngineUnavailable,
    InvalidValue,
    LoadError,
    MissingParameter,
    ModelNotFound,
    UnsupportedParameter,
)
from antiphon.processes.ipc.frames import from_line, to_line
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics

MOST_ADAPTERS = 2048
"""Names at once: each is a line of /v1/models and a handful of series of /metrics."""

Keep = Callable[[str, Path | None], Awaitable[Adapter]]
"""Takes an adapter's path as a caller wrote it, checks the files, and keeps them under their digest. The
second is the one directory that it lies in; None are the operator's. Raises InvalidValue, which names
`lora_path`, and PermissionDenied."""


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """A base model that takes adapters."""

    engine: Adapting
    keep: Keep
    view: Callable[[str], Engine]
    """The model's engine, computing with the adapter of a digest."""
    note: Callable[[Mapping[str, str]], None] = lambda _: None
    """Is told all that the engine has, path by digest, which other processes gave it."""
    lose: Callable[[str, str], None] = lambda *_: None
    """Is told the digest of an adapter that the engine does not take although it has a name, and why: it is
    given it again after a while."""


@dataclass(frozen=True, slots=True)
class AdapterRequest:
    """An adapter that a caller asks for."""

    name: str
    path: str
    base: str | None = None
    """The base model's name; None is the only one there is."""
    in_place: bool = False
    """Whether it may take the place of one of the same name."""
    among: Path | None = None
    """The one directory that the path lies in; None are the operator's."""
    may_use: Callable[[str], bool] = lambda _: True
    """Whether the caller may know of a base model."""
    deployed: Callable[[str], Deployed] | None = None
    """What is remembered of a deployment, by the base model's name."""


@dataclass(frozen=True, slots=True)
class Named:
    """A name as it is told to other processes."""

    name: str
    base: str
    adapter: Adapter
    created: int
    deployed: Deployed | None = None


class SharedNames(Protocol):
    """The names that all processes of a server have."""

    @property
    def revision(self) -> int:
        """Of the names, as this process knows them; 0: there were none yet."""

    async def publish(self, revision: int, names: bytes) -> bool:
        """Puts other names in the place of those of a revision. Every process, this one included, learns them
        before it returns; False where another process was faster. Raises EngineError."""


@runtime_checkable
class Closable(Protocol):
    """An engine that is closed without waiting."""

    def close(self) -> None: ...


class Adapters:
    """The adapters of one server."""

    def __init__(
        self,
        models: Models,
        homes: Mapping[str, AdapterTarget],
        clock: Clock,
        metrics: Metrics,
        shared: SharedNames | None = None,
    ) -> None:
        """`homes`: by the base model's name. `shared`: None, where no other process has the same names."""
        self._models = models
        self._homes = homes
        self._clock = clock
        self._metrics = metrics
        self._shared = shared
        self._reading = asyncio.Lock()
        """Held while files are read, which takes long and memory: one adapter at a time."""
        self._changing = asyncio.Lock()
        """Held while names and engines change: what follows sees what was before."""

    @property
    def bases(self) -> tuple[str, ...]:
        """Names of the models that take adapters."""
        return tuple(self._homes)

    def declare(self, name: str, base: str, adapter: Adapter) -> None:
        """Names an adapter of the settings, before its engine has it: until then requests wait for it.
        Raises LoadError for a model that takes none."""
        if base not in self._homes:
            raise LoadError(f"the adapter {name} cannot be served: the model {base} takes no adapters")
        self._put(name, base, adapter)

    async def restore(self, base: str) -> None:
        """Gives a base model's engine the adapters that have names. Raises EngineUnavailable, and, as the
        server starts, InvalidValue for one that it refuses; in one that serves already such a name fails
        alone, until the engine takes it."""
        for model in tuple(self._of(base)):
            if model.adapter is None:
                continue
            digest = model.adapter.digest
            try:
                await self._homes[base].engine.add_adapter(digest, model.adapter.path)
            except InvalidValue as refused:
                if self._shared is None or not self._shared.revision:
                    raise InvalidValue(
                        f"the adapter {model.name} cannot be served: {refused.message}", param="lora_path"
                    ) from None
                self._homes[base].lose(digest, refused.message)

    async def settle(self) -> None:
        """The names of the settings are served: a process that starts from here on does so in a server that
        serves."""
        if self._shared is not None and not self._shared.revision:
            await self._publish(self._collect_names())

    async def load(self, wanted: AdapterRequest) -> None:
        """Makes an adapter a model. The same content under its name is no error, and is given to an engine
        again that could not load it when it came back.

        Raises InvalidValue, MissingParameter, ModelNotFound or an EngineError; then nothing
        has changed.
        """
        base, home = self._home(wanted.base, wanted.may_use)
        self._require_free(wanted)
        async with self._reading:
            adapter = await home.keep(wanted.path, wanted.among)
        async with self._changing:
            while not await self._load(wanted, base, adapter):
                pass  # another process was faster: what it changed is known here now

    async def _load(self, wanted: AdapterRequest, base: str, adapter: Adapter) -> bool:
        """Whether it was loaded before any other process changed a name."""
        self._require_free(wanted)
        before = self._models.get(wanted.name) if wanted.name in self._models else None
        again = before is not None and _is_same(before, base, adapter)
        if before is not None and not again and not wanted.in_place:
            raise InvalidValue(
                f"the adapter {wanted.name!r} is loaded already, with other content; send load_inplace "
                "true to put this in its place, or unload it first",
                param="lora_name",
            )
        try:
            await self._homes[base].engine.add_adapter(adapter.digest, adapter.path)
        except InvalidValue as refused:
            raise InvalidValue(refused.message, param="lora_path") from None
        deployed = wanted.deployed and wanted.deployed(base)
        if again and deployed is None:
            return True
        named = Named(wanted.name, base, adapter, int(self._clock.wall()), deployed)
        if not await self._publish(self._collect_names() | {wanted.name: named}):
            return False
        record("adapter_loaded", name=wanted.name, base=base, digest=adapter.digest)
        if before is not None and not again:
            await self._release(before)
        return True

    async def unload(self, name: str) -> None:
        """Takes a name away at once; what runs with it ends. Raises ModelNotFound, or InvalidValue for a
        base model."""
        async with self._changing:
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
            await self._release(model)

    def learn(self, names: bytes) -> None:
        """From now on these are the names, as `SharedNames` was given them by this or another process."""
        self._learn({named.name: named for named in from_line(names, tuple[Named, ...])})

    def _learn(self, there: Mapping[str, Named]) -> None:
        for model in self._models.adapters():
            named = there.get(model.name)
            if named is None or not self._is_served(named):
                self._models.remove(model)
                if isinstance(model.engine, Closable):
                    model.engine.close()
            if named is None:
                self._metrics.forget(model.name)
        for named in there.values():
            if not self._is_served(named):
                self._put(named.name, named.base, named.adapter, named.deployed, named.created)
        for base, home in self._homes.items():
            home.note({model.adapter.digest: model.adapter.path for model in self._of(base) if model.adapter})

    def _is_served(self, named: Named) -> bool:
        """Whether a name means the same here."""
        if named.name not in self._models:
            return False
        model = self._models.get(named.name)
        return _is_same(model, named.base, named.adapter) and model.deployed == named.deployed

    def _collect_names(self) -> dict[str, Named]:
        """The names as they are now."""
        return {
            model.name: Named(model.name, model.parent, model.adapter, model.created, model.deployed)
            for model in self._models.adapters()
            if model.parent is not None and model.adapter is not None
        }

    async def _publish(self, names: Mapping[str, Named]) -> bool:
        """Has every process serve these names; False where another process changed them meanwhile. Raises
        EngineError where the others cannot be told: then nothing has changed."""
        if self._shared is None:
            self._learn(names)
            return True
        return await self._shared.publish(self._shared.revision, to_line(tuple(names.values())))

    def _put(
        self,
        name: str,
        base: str,
        adapter: Adapter,
        deployed: Deployed | None = None,
        created: int | None = None,
    ) -> None:
        kind = self._models.get(base).routes[0].kind
        routes = (ModelRoute(self._homes[base].view(adapter.digest), kind),)
        created = int(self._clock.wall()) if created is None else created
        self._models.put(Model(name, routes, created, base, adapter, deployed))

    async def _release(self, gone: Model) -> None:
        """Has the engine let go of what no name needs any more. One that is away has nothing to let go of."""
        await gone.engine.aclose()
        if gone.parent is None or gone.adapter is None:
            return
        digest = gone.adapter.digest
        if any(_has(model, digest) for model in self._of(gone.parent)):
            return
        with suppress(EngineUnavailable):
            await self._homes[gone.parent].engine.remove_adapter(digest)

    def _of(self, base: str) -> Iterable[Model]:
        return (model for model in self._models.adapters() if model.parent == base)

    def _home(self, name: str | None, may_use: Callable[[str], bool]) -> tuple[str, AdapterTarget]:
        """The base model of an adapter, by name."""
        if name is None:
            if len(self._homes) == 1:
                return next(iter(self._homes.items()))
            known = ", ".join(filter(may_use, self._homes)) or "none"
            raise MissingParameter(
                f"base_model_name is missing; models that take adapters: {known}", param="base_model_name"
            )
        if not may_use(name):
            raise ModelNotFound(absent(name), param="base_model_name")
        if name not in self._homes:
            try:
                found = self._models.get(name, may_use)
            except ModelNotFound as refusal:
                raise ModelNotFound(refusal.message, param="base_model_name") from None
            raise UnsupportedParameter(f"{found.name} takes no adapters", param="base_model_name")
        return name, self._homes[name]

    def require_no_alias(self, name: str) -> None:
        """Raises InvalidValue for a name that means another model: its callers would get this one."""
        if self._models.is_alias(name):
            raise InvalidValue(f"{name!r} is an alias here; choose another name", param="lora_name")

    def _require_free(self, wanted: AdapterRequest) -> None:
        """Raises InvalidValue for a name that no adapter can have, before any file is looked at."""
        if wanted.name in self._models:
            if self._models.get(wanted.name).parent is None:
                raise InvalidValue(
                    f"{wanted.name!r} is a base model's name; choose another", param="lora_name"
                )
            return
        self.require_no_alias(wanted.name)
        if len(self._models.adapters()) >= MOST_ADAPTERS:
            record("adapters_full", logging.WARNING, most=MOST_ADAPTERS)
            raise InvalidValue(
                f"{MOST_ADAPTERS:,} adapters are loaded, which is the most; unload one first",
                param="lora_name",
            )


def _is_same(model: Model, base: str, adapter: Adapter) -> bool:
    return model.parent == base and _has(model, adapter.digest)


def _has(model: Model, digest: str) -> bool:
    return model.adapter is not None and model.adapter.digest == digest
