"""Adapters that callers deploy, from the hub or from the operator's directories: who deployed what, and when.
Files are fetched by whoever is handed in; names and engines are the business of `pipeline.adapters`.

What is deployed under a name takes the place of what was deployed there before, and of nothing else: a name
that the operator gave, or that was loaded by its path, is refused.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Protocol

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.deployment import Delivered, Deployed, DeployedBase, Deployment, Source
from antiphon.domain.identity import Actor
from antiphon.engines.registry import Model, Models
from antiphon.errors import InvalidValue, ModelNotFound, Overloaded, PermissionDenied, RequestError
from antiphon.pipeline.adapters import AdapterRequest, Adapters
from antiphon.pipeline.authorize import authorize_name
from antiphon.telemetry.logs import record

AT_ONCE = 2
"""Adapters that arrive at once: each takes a process, and the network of the others."""

MOST_WAITING = 16
"""Deployments from the hub that wait for their turn."""

NAMES = {"lora_path": "model_name", "lora_name": "name"}
"""What those who deploy call the fields that loading names."""

REMEDY = (
    "adapters are deployed only where the operator allows it: set lora.repositories "
    "(ANTIPHON_LORA_REPOSITORIES) for the hub or lora.directories (ANTIPHON_LORA_DIRECTORIES) for files, and "
    "restart the server"
)


class Fetching(Protocol):
    """Where adapters of the hub come from."""

    def require_allowed(self, wanted: Deployment) -> None:
        """Raises PermissionDenied, or InvalidValue for what is no name."""

    def fetch(self, wanted: Deployment) -> AbstractAsyncContextManager[Delivered]:
        """The adapter, while the context lasts. Raises a RequestError, an EngineError or
        HubUnavailable."""


class Deployments:
    """The deployed adapters of one server."""

    def __init__(
        self,
        models: Models,
        adapters: Adapters | None = None,
        fetching: Fetching | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`adapters`: None, where callers may not deploy at all."""
        self._models = models
        self._adapters = adapters
        self._fetching = fetching
        self._clock = clock or SystemClock()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0

    async def deploy(self, wanted: Deployment, actor: Actor) -> Deployed:
        """Makes an adapter a model. Raises a RequestError that names the field at fault, an EngineError or
        HubUnavailable; then nothing has changed and nothing is left."""
        adapters = self._require_adapters()
        with _rename_fields():
            authorize_name(actor, wanted.name, "name")
            self._require_free(wanted.name, adapters)
            if wanted.source is Source.LOCAL:
                path, noted = _require_relative(wanted), self._prepare_record(wanted, None, actor)
                await adapters.load(
                    AdapterRequest(wanted.name, path, wanted.base, True, None, actor.may_use, noted)
                )
                return self._report_deployed(wanted.name)
            if self._fetching is None:
                raise PermissionDenied(REMEDY)
            self._fetching.require_allowed(wanted)
            async with self._turn(), self._fetching.fetch(wanted) as found:
                self._require_free(wanted.name, adapters)
                base = wanted.base or self._base(adapters, found)
                path, directory = found.path, found.directory
                noted = self._prepare_record(wanted, found.commit, actor)
                await adapters.load(
                    AdapterRequest(wanted.name, path, base, True, directory, actor.may_use, noted)
                )
                return self._report_deployed(wanted.name)

    async def remove(self, name: str, actor: Actor) -> None:
        """Takes a name away at once; what runs with it ends. Raises ModelNotFound."""
        adapters = self._require_adapters()
        self.find(name, actor)
        with _rename_fields():
            await adapters.unload(name)

    def find(self, name: str, actor: Actor) -> Deployed:
        """The adapter of that name, if the actor's key is for it. Raises ModelNotFound."""
        model = self._models.get(name) if name in self._models and actor.may_use(name) else None
        if model is None or model.parent is None:
            raise ModelNotFound(f"the LoRA {name[:100]!r} does not exist", param="name")
        return self._redact_creator(model, actor)

    def listed(self, actor: Actor) -> Iterator[Deployed]:
        """All adapters that the actor's key is for, those too that nobody deployed."""
        return (
            self._redact_creator(model, actor)
            for model in self._models.adapters()
            if actor.may_use(model.name)
        )

    def base(self, name: str, actor: Actor) -> DeployedBase:
        """The base model of that name, if the actor's key is for it. Raises ModelNotFound."""
        for model in self.bases(actor):
            if model.name == name:
                return model
        raise ModelNotFound(f"the base model {name[:100]!r} does not exist", param="name")

    def bases(self, actor: Actor) -> Iterator[DeployedBase]:
        """All base models that the actor's key is for."""
        bases = (model for model in self._models.bases() if actor.may_use(model.name))
        return (DeployedBase(model.name, model.created) for model in bases)

    def _require_adapters(self) -> Adapters:
        if self._adapters is None:
            raise PermissionDenied(REMEDY)
        return self._adapters

    def _require_free(self, name: str, adapters: Adapters) -> None:
        """Raises InvalidValue for a name that is not a deployment's."""
        if name not in self._models:
            adapters.require_no_alias(name)
            return
        if self._models.get(name).deployed is not None:
            return
        whose = (
            "a base model" if self._models.get(name).parent is None else "an adapter that was not deployed"
        )
        raise InvalidValue(f"{name!r} is the name of {whose}; choose another", param="name")

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._waiting >= MOST_WAITING:
            raise Overloaded(f"{MOST_WAITING} deployments wait already; try again later")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turns.release()

    def _base(self, adapters: Adapters, found: Delivered) -> str | None:
        """The only base model, or the one that the adapter itself names; None where that is neither."""
        if len(adapters.bases) == 1 or found.base is None:
            return None
        said = {found.base.casefold(), found.base.rpartition("/")[2].casefold()}
        named = [base for base in adapters.bases if base.casefold() in said]
        return named[0] if len(named) == 1 else None

    def _prepare_record(
        self, wanted: Deployment, commit: str | None, actor: Actor
    ) -> Callable[[str], Deployed]:
        """What is remembered of a deployment, by the base model's name."""

        def build_record(base: str) -> Deployed:
            now = int(self._clock.wall())
            return Deployed(wanted.name, base, wanted.model_name, wanted.source, now, commit, actor)

        return build_record

    def _report_deployed(self, name: str) -> Deployed:
        """What was deployed just now."""
        deployed = self._models.get(name).deployed
        if deployed is None:
            raise ModelNotFound(f"the LoRA {name[:100]!r} does not exist any more", param="name")
        record(
            "lora_deployed",
            name=name,
            source=str(deployed.source),
            commit=deployed.revision,
            actor=deployed.creator and deployed.creator.id,
        )
        return deployed

    def _redact_creator(self, model: Model, actor: Actor) -> Deployed:
        """Who deployed it is told in the project that it was deployed in, and to the operator."""
        deployed = model.deployed
        if deployed is not None:
            creator = deployed.creator
            is_told = actor.admin or (creator is not None and creator.project == actor.project)
            return deployed if is_told else replace(deployed, creator=None)
        content = f"sha256:{model.adapter.digest}" if model.adapter else model.name
        return Deployed(model.name, model.parent or "", content, Source.LOCAL, model.created)


def _require_relative(wanted: Deployment) -> str:
    """A path below the operator's directories: what is shown of it tells nothing of the server."""
    if wanted.model_name.startswith("/"):
        raise InvalidValue(
            "model_name must be a path below one of the directories that the operator allows, not an "
            "absolute one",
            param="model_name",
        )
    return wanted.model_name


@contextmanager
def _rename_fields() -> Iterator[None]:
    """Errors of loading name the fields of a deployment."""
    try:
        yield
    except RequestError as refused:
        if refused.param not in NAMES:
            raise
        renamed = type(refused)(refused.message, param=NAMES[refused.param], retry_after=refused.retry_after)
        raise renamed from None
