"""Adapters as models: loads, replaces and unloads them while requests run. This module manages names. The
adapter store manages files, and engines manage adapters by their digests.

A name exists from the moment the engine has the adapter until the name is unloaded. After that, new requests
get "no such model", and running requests finish as before. Several names can have the same content. The
engine releases the content with the last name. All processes of a server have the same names: every process
applies a change before the caller gets the answer. After a restart the server has the names of its settings,
and those in `KeptNames`.

An adapter that a project's key loaded belongs to that project. Other projects cannot see its name, and two
projects can use the same name. The operator's names take precedence.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from antiphon.domain.context import Clock
from antiphon.domain.models import Adapter, AdapterKey, AdapterName, DeployedAdapter, KeptName, NameChange
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import AdapterEngine, Engine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute, describe_missing_model
from antiphon.errors import (
    EngineError,
    EngineUnavailable,
    InvalidValue,
    LoadError,
    MissingParameter,
    ModelNotFound,
    PermissionDenied,
    UnsupportedParameter,
)
from antiphon.processes.ipc import from_line, to_line
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics

MAX_ADAPTERS = 2048
"""The most names at once. Each name is an entry of /v1/models and several series of /metrics."""

MAX_STORES = 10
"""The most times that one request stores its file. An unload can remove the file before it is loaded."""

StoreAdapter = Callable[[str, Path | None], Awaitable[Adapter]]
"""Checks the files at a path that a caller sent, and stores them by digest. The second argument is the one
allowed directory; None allows the operator's directories. Raises InvalidValue for `lora_path`, and
PermissionDenied."""


class AdapterTarget(Struct, frozen=True):
    """A base model that can use adapters."""

    engine: AdapterEngine
    store_adapter: StoreAdapter
    create_engines: Callable[[str], tuple[Engine, ...]]
    """Creates the engines for the adapter of a digest, one for each route of the base model."""
    report_adapters: Callable[[Mapping[str, str]], None] = lambda _: None
    """Called with all adapters of the engine, as paths by digest, including adapters that other processes
    added."""
    report_refused: Callable[[str, str], None] = lambda *_: None
    """Called with the digest of a named adapter that the engine refused, and the reason. The engine is asked
    again later."""
    fingerprint: str = ""
    """The fingerprint of the model's file."""


class AdapterRequest(Struct, frozen=True):
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
    build_record: Callable[[str], DeployedAdapter] | None = None
    """Builds the record of a deployment from the base model's name; None if the adapter is not deployed."""
    project: str | None = None
    """The project that owns the adapter; None for the operator."""


class ProjectQuota(Struct, frozen=True):
    """The most adapters of one project, and the most bytes of them together."""

    adapters: int = 0
    total_bytes: int = 0


NO_QUOTA = ProjectQuota()
"""Projects load no adapters."""


class SharedNames(Protocol):
    """The adapter names that all processes of a server share."""

    @property
    def revision(self) -> int:
        """The revision of the names that this process knows; 0 if none were published yet."""

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        """Replaces the names of a revision. `change`: the encoded NameChange to store for the next start, if
        there is one. Returns True when every process has the new names and the change is stored. Returns
        False if another process has published names before. Raises EngineError."""


class KeptNames(Protocol):
    """The names that survive a restart, and the files of their adapters. Every method blocks, except
    `hold_changes`."""

    def hold_changes(self) -> AbstractAsyncContextManager[None]:
        """Excludes changes of every other process of the registry until the block ends. Raises
        OSError."""

    def read(self) -> tuple[KeptName, ...]:
        """Returns the names, the oldest first."""

    def find_obstacle(self, adapter: Adapter) -> str | None:
        """Returns why the adapter's file cannot be used; None if it can."""

    def locate(self, adapter: Adapter) -> Adapter:
        """Returns the adapter with the path of its file in this server's registry."""

    def remove_file(self, digest: str) -> None:
        """Removes the file of an adapter if no kept name of any server uses it."""


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
        kept_names: KeptNames | None = None,
    ) -> None:
        """`targets`: by the base model's name. `shared`: None if there is no other process. `kept_names`:
        None if names end with the server."""
        self._models = models
        self._targets = targets
        self._clock = clock
        self._metrics = metrics
        self._shared = shared
        self._kept_names = kept_names
        self.quota = NO_QUOTA
        """The quota of each project. Set it before anything is loaded."""
        self._file_lock = asyncio.Lock()
        """Held while files are read, because reading takes time and memory: one adapter at a time."""
        self._change_lock = asyncio.Lock()
        """Held while names and engines change, so that changes of this process happen one after another."""

    @property
    def bases(self) -> tuple[str, ...]:
        """Names of the models that take adapters."""
        return tuple(self._targets)

    def declare(self, name: str, base: str, adapter: Adapter) -> None:
        """Adds a name from the settings before its engine has the adapter. Requests for the name wait until
        the engine has it. Raises LoadError if the model takes no adapters."""
        if base not in self._targets:
            raise LoadError(f"the adapter {name} cannot be served: the model {base} takes no adapters")
        self._add_model(AdapterName(name, base, adapter, int(self._clock.wall())))

    def restore_kept(self) -> None:
        """Adds the kept names of an earlier server. A name that cannot be served is logged and stays kept.
        Call it after `declare`, before anything is served. It reads files."""
        if self._kept_names is None or (self._shared is not None and self._shared.revision):
            return  # another process of this server has published the names
        for kept_name in self._kept_names.read():
            entry = kept_name.entry
            obstacle = self._find_obstacle(kept_name) or self._kept_names.find_obstacle(entry.adapter)
            if obstacle is None:
                self._add_model(replace(entry, adapter=self._kept_names.locate(entry.adapter), is_kept=True))
            else:
                _log_unrestored(entry.name, entry.project, entry.base, obstacle)

    def _find_obstacle(self, kept_name: KeptName) -> str | None:
        """Returns why a kept name cannot be served now; None if it can."""
        entry = kept_name.entry
        if entry.project is None and self._models.is_reserved(entry.name):
            return "the settings have a model or an alias of this name"
        if entry.base not in self._targets:
            return f"the model {entry.base} is not served, or takes no adapters"
        if kept_name.fingerprint != self._targets[entry.base].fingerprint:
            return (
                f"the file of {entry.base} has changed since the adapter was loaded; load the adapter again"
            )
        if entry.project is not None and not self.quota.adapters:
            return "projects may have no adapters: lora.project_adapters is 0"
        return None

    async def prepare_target(self, base: str, target: AdapterTarget) -> None:
        """Loads the adapters of a base model into a new engine. Raises InvalidValue or an EngineError."""
        for model in tuple(self._list_adapters(base)):
            if model.adapter is not None:
                await target.engine.add_adapter(model.adapter.digest, model.adapter.path)

    def replace_targets(self, targets: Mapping[str, AdapterTarget], unchanged_bases: Collection[str]) -> None:
        """Replaces the base models. Removes the adapters of removed base models in this process.
        `unchanged_bases`: base models that keep their engine."""
        unchanged_targets = {name: self._targets[name] for name in unchanged_bases if name in self._targets}
        self._targets = {**targets, **unchanged_targets}
        for model in self._models.list_adapters():
            base = model.parent or ""
            if base in unchanged_targets or model.adapter is None:
                continue
            self._remove_model(model)
            if base in self._targets:
                self._add_model(_build_name(model, base, model.adapter))
            else:
                self._end_series(model)
        self._report_adapters()

    async def restore(self, base: str) -> None:
        """Loads all named adapters into the engine of a base model. Raises EngineUnavailable.

        The engine can refuse an adapter. While the server starts, this raises InvalidValue for an adapter of
        the settings, and removes a kept name. After the start only requests for this adapter fail, until the
        engine accepts it.
        """
        for model in tuple(self._list_adapters(base)):
            if model.adapter is None:
                continue
            digest = model.adapter.digest
            try:
                await self._targets[base].engine.add_adapter(digest, model.adapter.path)
            except InvalidValue as error:
                is_starting = self._shared is None or not self._shared.revision
                if is_starting and model.is_kept:
                    _log_unrestored(model.name, model.project, base, error.message)
                    self._remove_model(model)
                    continue
                if is_starting:
                    raise InvalidValue(
                        f"the adapter {model.name} cannot be served: {error.message}", param="lora_path"
                    ) from None
                self._targets[base].report_refused(digest, error.message)

    async def publish_settings(self) -> None:
        """Publishes the names of the settings once they are served."""
        if self._shared is not None and not self._shared.revision:
            await self._publish(self._collect_names())

    async def load(self, adapter_request: AdapterRequest) -> None:
        """Makes an adapter a model. The same content can be loaded again under the same name, for example if
        an engine could not load it after a restart.

        Raises InvalidValue, MissingParameter, ModelNotFound or an EngineError. After an error nothing has
        changed."""
        base, target = self._find_target(adapter_request.base, adapter_request.may_use)
        self._require_free(adapter_request)
        for _ in range(MAX_STORES):
            obstacle = await self._store_and_load(adapter_request, base, target)
            if obstacle is None:
                return
        raise EngineError(f"the adapter cannot be stored: {obstacle}; try again")

    async def _store_and_load(
        self, adapter_request: AdapterRequest, base: str, target: AdapterTarget
    ) -> str | None:
        """Stores the adapter's file and loads the adapter. Returns None if the adapter is loaded. Returns why
        the stored file cannot be used if it was removed meanwhile: the unload of the last name with the same
        content removes the file."""
        async with self._file_lock:
            adapter = await target.store_adapter(adapter_request.path, adapter_request.directory)
        async with self._hold_changes():
            if self._kept_names is not None:
                obstacle = await asyncio.to_thread(self._kept_names.find_obstacle, adapter)
                if obstacle is not None:
                    return obstacle
            try:
                while not await self._load(adapter_request, base, adapter):
                    pass  # another process changed the names first, and this process now has its change
            except BaseException:
                with suppress(EngineError):  # finds out whether the name was published after all
                    await self._publish(self._collect_names())
                await self._discard_file(adapter_request.project, adapter.digest)
                raise
        return None

    @asynccontextmanager
    async def _hold_changes(self) -> AsyncIterator[None]:
        """Excludes other changes until the block ends, including those of other processes, so that no change
        removes an adapter from the engine while another change gives it a name. Raises EngineError."""
        async with self._change_lock, AsyncExitStack() as stack:
            if self._kept_names is not None:
                try:
                    await stack.enter_async_context(self._kept_names.hold_changes())
                except OSError as error:
                    raise EngineError(
                        "the adapters cannot be changed: the registry (ANTIPHON_LORA_REGISTRY) cannot be "
                        f"written: {error.strerror}"
                    ) from None
            yield

    async def _load(self, adapter_request: AdapterRequest, base: str, adapter: Adapter) -> bool:
        """Loads the adapter into the engine, and publishes its name. Returns False if another process changed
        the names first."""
        self._require_free(adapter_request)
        earlier_model = self._models.find_own(adapter_request.name, adapter_request.project)
        self._require_quota(adapter_request, adapter, earlier_model)
        is_same_content = earlier_model is not None and _is_adapter_of(earlier_model, base, adapter)
        if earlier_model is not None and not is_same_content and not adapter_request.in_place:
            raise InvalidValue(
                f"the adapter {adapter_request.name!r} is loaded already, with other content; send "
                "load_inplace true to replace it, or unload it first",
                param="lora_name",
            )
        try:
            await self._targets[base].engine.add_adapter(adapter.digest, adapter.path)
        except InvalidValue as error:
            raise InvalidValue(error.message, param="lora_path") from None
        deployed = adapter_request.build_record and adapter_request.build_record(base)
        if is_same_content and deployed is None:
            return True
        name, project = adapter_request.name, adapter_request.project
        entry = AdapterName(name, base, adapter, int(self._clock.wall()), deployed, project, True)
        change = NameChange(project, name, KeptName(entry, self._targets[base].fingerprint))
        if not await self._publish(self._collect_names() | {entry.key: entry}, change):
            return False
        record("adapter_loaded", name=name, base=base, digest=adapter.digest, project=project)
        if earlier_model is not None and not is_same_content:
            await self._release_adapter(earlier_model)
        return True

    async def unload(self, name: str, owner: str | None = None) -> None:
        """Removes a name at once. Running requests finish. `owner`: the project of the adapter; None for the
        operator's. Also removes a kept name that could not be served. Raises ModelNotFound, or InvalidValue
        for a base model."""
        async with self._hold_changes():
            while True:
                model = self._models.find_own(name, owner)
                if model is not None and model.parent is None:
                    raise InvalidValue(
                        f"{name!r} is a base model; only adapters are unloaded", param="lora_name"
                    )
                if model is None and not await self._has_kept(name, owner):
                    raise ModelNotFound(
                        f"the adapter {name[:100]!r} cannot be found; /v1/models lists what is loaded",
                        param="lora_name",
                    )
                names = self._collect_names()
                names.pop((owner, name), None)
                if await self._publish(names, NameChange(owner, name, None)):
                    break
            record("adapter_unloaded", name=name, base=model and model.parent, project=owner)
            if model is not None:
                await self._release_adapter(model)

    async def _has_kept(self, name: str, owner: str | None) -> bool:
        """Whether `KeptNames` has the name, even if it is not served."""
        if self._kept_names is None:
            return False
        kept_names = await asyncio.to_thread(self._kept_names.read)
        return any(kept_name.entry.key == (owner, name) for kept_name in kept_names)

    def update_names(self, names: bytes) -> None:
        """Applies the names that this process or another one has published."""
        self._apply_names({entry.key: entry for entry in from_line(names, tuple[AdapterName, ...])})

    def _apply_names(self, names: Mapping[AdapterKey, AdapterName]) -> None:
        """Serves exactly these names: removes other adapters and adds missing ones."""
        for model in self._models.list_adapters():
            entry = names.get((model.project, model.name))
            if entry is None or not self._is_served(entry):
                self._remove_model(model)
            if entry is None:
                self._end_series(model)
        for entry in names.values():
            if entry.base in self._targets and not self._is_served(entry):
                self._add_model(entry)
        self._report_adapters()

    def _remove_model(self, model: Model) -> None:
        """Removes an adapter's name in this process."""
        self._models.remove(model)
        for route in model.routes:
            if isinstance(route.engine, Closable):
                route.engine.close()

    def _end_series(self, model: Model) -> None:
        """Ends the metrics series of an adapter. A project's adapter has no series of its own."""
        if model.project is None:
            self._metrics.forget(model.name)

    def _report_adapters(self) -> None:
        """Reports the current adapters to the engine of each base model."""
        for base, target in self._targets.items():
            target.report_adapters(
                {
                    model.adapter.digest: model.adapter.path
                    for model in self._list_adapters(base)
                    if model.adapter
                }
            )

    def _is_served(self, entry: AdapterName) -> bool:
        """Whether the name has the same adapter and the same deployment in this process."""
        model = self._models.find_own(entry.name, entry.project)
        if model is None:
            return False
        return _is_adapter_of(model, entry.base, entry.adapter) and model.deployed == entry.deployed

    def _collect_names(self) -> dict[AdapterKey, AdapterName]:
        """Returns the current names of all adapters."""
        return {
            (model.project, model.name): _build_name(model, model.parent, model.adapter)
            for model in self._models.list_adapters()
            if model.parent is not None and model.adapter is not None
        }

    async def _publish(
        self, names: Mapping[AdapterKey, AdapterName], change: NameChange | None = None
    ) -> bool:
        """Makes every process serve these names, and keeps the change over a restart. Returns False if
        another process changed the names first. Raises EngineError if this fails; after that nothing has
        changed."""
        if self._shared is None:
            self._apply_names(names)
            return True
        stored_change = b"" if change is None or self._kept_names is None else to_line(change)
        return await self._shared.publish(
            self._shared.revision, to_line(tuple(names.values())), stored_change
        )

    def _add_model(self, entry: AdapterName) -> None:
        """Adds a model for an adapter's name in this process. If the base model has several hosts, the model
        has a route to each and shares the state of the base model's routes."""
        base = self._models.get(entry.base)
        engines = self._targets[entry.base].create_engines(entry.adapter.digest)
        routes = tuple(
            ModelRoute(engine, route.kind)
            if len(engines) == 1
            else ModelRoute(engine, route.kind, name=route.name, state=route.state)
            for engine, route in zip(engines, base.routes, strict=True)
        )
        self._models.put(
            Model(
                entry.name,
                routes,
                entry.created,
                entry.base,
                entry.adapter,
                entry.deployed,
                project=entry.project,
                is_kept=entry.is_kept,
                prefers_prefix=base.prefers_prefix,
            )
        )

    async def _release_adapter(self, model: Model) -> None:
        """Closes the engines of a removed model. Removes the adapter from the base model's engine if no other
        name uses it. Skips an engine that is not available."""
        for route in model.routes:
            await route.engine.aclose()
        if model.parent is None or model.adapter is None:
            return
        digest = model.adapter.digest
        if any(_has_digest(model, digest) for model in self._list_adapters(model.parent)):
            return
        try:
            with suppress(EngineUnavailable):
                await self._targets[model.parent].engine.remove_adapter(digest)
        finally:
            await self._discard_file(model.project, digest)

    async def _discard_file(self, project: str | None, digest: str) -> None:
        """Removes the file of a project's adapter if no name uses it any more, so a project cannot fill the
        disk. Files of the operator's adapters stay."""
        is_used = any(_has_digest(model, digest) for model in self._models.list_adapters())
        if project is not None and self._kept_names is not None and not is_used:
            await asyncio.to_thread(self._kept_names.remove_file, digest)

    def _list_adapters(self, base: str) -> Iterable[Model]:
        """Yields the models that are adapters of a base model."""
        return (model for model in self._models.list_adapters() if model.parent == base)

    def _find_target(self, name: str | None, may_use: Callable[[str], bool]) -> tuple[str, AdapterTarget]:
        """Returns the name and the target of the base model for an adapter. Raises MissingParameter,
        ModelNotFound or UnsupportedParameter."""
        if name is None:
            usable = [base for base in self._targets if may_use(base)]
            if len(self._targets) == len(usable) == 1:
                return usable[0], self._targets[usable[0]]
            base_names = ", ".join(usable) or "none"
            raise MissingParameter(
                f"base_model_name is missing; models that take adapters: {base_names}",
                param="base_model_name",
            )
        if not may_use(name):
            raise ModelNotFound(describe_missing_model(name), param="base_model_name")
        if name not in self._targets:
            try:
                model = self._models.get(name, may_use)
            except ModelNotFound as error:
                raise ModelNotFound(error.message, param="base_model_name") from None
            raise UnsupportedParameter(f"{model.name} takes no adapters", param="base_model_name")
        return name, self._targets[name]

    def require_no_alias(self, name: str) -> None:
        """Raises InvalidValue if the name is an alias. An adapter with that name would answer the callers of
        the alias."""
        if self._models.is_alias(name):
            raise InvalidValue(f"{name!r} is an alias here; choose another name", param="lora_name")

    def _require_free(self, adapter_request: AdapterRequest) -> None:
        """Raises InvalidValue for a name that the adapter cannot have, before any file is read. Raises
        PermissionDenied if projects may have no adapters."""
        name, project = adapter_request.name, adapter_request.project
        if project is not None:
            self.require_project_adapters()
            if self._models.is_reserved(name):
                raise InvalidValue(f"{name!r} is a name of the operator; choose another", param="lora_name")
        if (model := self._models.find_own(name, project)) is not None:
            if model.parent is None:
                raise InvalidValue(f"{name!r} is a base model's name; choose another", param="lora_name")
            return
        self.require_no_alias(name)
        if len(self._models.list_adapters()) >= MAX_ADAPTERS:
            record("adapters_full", logging.WARNING, most=MAX_ADAPTERS)
            raise InvalidValue(
                f"{MAX_ADAPTERS:,} adapters are loaded, which is the most; unload one first",
                param="lora_name",
            )

    def require_project_adapters(self) -> None:
        """Raises PermissionDenied if projects may have no adapters."""
        if not self.quota.adapters:
            raise PermissionDenied(
                "only the operator loads adapters here: set lora.project_adapters "
                "(ANTIPHON_LORA_PROJECT_ADAPTERS) and restart the server"
            )

    def _require_quota(
        self, adapter_request: AdapterRequest, adapter: Adapter, earlier_model: Model | None
    ) -> None:
        """Raises PermissionDenied if a project would have too many adapters, or too many bytes of them."""
        project, quota = adapter_request.project, self.quota
        if project is None:
            return
        other_adapters = [
            model
            for model in self._models.list_adapters()
            if model.project == project and model != earlier_model
        ]
        if len(other_adapters) >= quota.adapters:
            raise PermissionDenied(
                f"the project has {len(other_adapters)} adapters, which is the most; unload one first",
                param="lora_name",
            )
        size = adapter.size + sum(model.adapter.size for model in other_adapters if model.adapter)
        if size > quota.total_bytes:
            raise PermissionDenied(
                f"the project's adapters would have {size:,} bytes, and {quota.total_bytes:,} are the most; "
                "unload one first",
                param="lora_path",
            )


def _log_unrestored(name: str, project: str | None, base: str, reason: str) -> None:
    """Logs a kept name that is not served."""
    record("adapter_not_restored", logging.WARNING, name=name, project=project, base=base, reason=reason)


def _build_name(model: Model, base: str, adapter: Adapter) -> AdapterName:
    """Returns an adapter's name as processes exchange it."""
    return AdapterName(model.name, base, adapter, model.created, model.deployed, model.project, model.is_kept)


def _is_adapter_of(model: Model, base: str, adapter: Adapter) -> bool:
    """Whether the model is this adapter of this base model."""
    return model.parent == base and _has_digest(model, adapter.digest)


def _has_digest(model: Model, digest: str) -> bool:
    return model.adapter is not None and model.adapter.digest == digest
