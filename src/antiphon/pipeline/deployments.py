"""Deploys adapters for callers, from the hub or from the operator's directories, and records who deployed
them. `weights` fetches the files, and `pipeline.adapters` serves the names.

A deployment can replace only an earlier deployment of the same name. It cannot have the name of an adapter
that the operator named or that was loaded by its path.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Protocol

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.identity import Actor
from antiphon.domain.models import (
    AdapterOrigin,
    DeployedAdapter,
    DeployedBase,
    DeploymentRequest,
    FetchedAdapter,
)
from antiphon.domain.values import replace
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import InvalidValue, ModelNotFound, Overloaded, PermissionDenied, RequestError
from antiphon.pipeline.adapters import AdapterRegistry, AdapterRequest
from antiphon.pipeline.routing import authorize_name
from antiphon.telemetry.logs import record

MAX_FETCHING = 2
"""The most adapters that are fetched at once. Each needs a process, and bandwidth."""

MAX_WAITING = 16
"""The most deployments from the hub that can wait."""

DEPLOYMENT_FIELDS = {"lora_path": "model_name", "lora_name": "name"}
"""Maps the names of fields, as they are when an adapter is loaded by its path, to a deployment's names."""

DEPLOYING_IS_OFF = (
    "adapters are deployed only where the operator allows it: set lora.repositories "
    "(ANTIPHON_LORA_REPOSITORIES) for the hub or lora.directories (ANTIPHON_LORA_DIRECTORIES) for files, and "
    "restart the server"
)

HUB_ONLY = (
    "a project's key loads adapters from the hub alone, since files of the server are the operator's: deploy "
    "one with model_source HF_HUB"
)


class AdapterSource(Protocol):
    """Fetches adapters from the hub."""

    def require_allowed(self, deployment: DeploymentRequest) -> None:
        """Raises PermissionDenied, or InvalidValue for an invalid repository name."""

    def fetch(self, deployment: DeploymentRequest) -> AbstractAsyncContextManager[FetchedAdapter]:
        """Yields the files of the adapter, which exist until the block ends. Raises a RequestError, an
        EngineError or HubUnavailable."""


class Deployments:
    """The deployed adapters of one server."""

    def __init__(
        self,
        models: ModelRegistry,
        adapters: AdapterRegistry | None = None,
        source: AdapterSource | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`adapters`: None if callers cannot deploy."""
        self._models = models
        self._adapters = adapters
        self._source = source
        self._clock = clock or SystemClock()
        self._fetch_slots = asyncio.Semaphore(MAX_FETCHING)
        self._waiting = 0

    async def deploy(self, deployment: DeploymentRequest, actor: Actor) -> DeployedAdapter:
        """Makes an adapter a model. Raises a RequestError that names the wrong field, an EngineError or
        HubUnavailable. On failure nothing changes and no file is left."""
        adapters, owner = self._require_adapters(), actor.adapter_owner
        with _rename_fields():
            authorize_name(actor, deployment.name, "name")
            self._require_free(deployment.name, owner, adapters)
            if deployment.source is AdapterOrigin.LOCAL:
                if owner is not None:
                    raise PermissionDenied(HUB_ONLY, param="model_source")
                path = _require_relative(deployment)
                build_record = self._create_record_builder(deployment, None, actor)
                await adapters.load(
                    AdapterRequest(
                        deployment.name, path, deployment.base, True, None, actor.may_use, build_record
                    )
                )
                return self._report_deployed(deployment.name, None)
            if self._source is None:
                raise PermissionDenied(DEPLOYING_IS_OFF)
            self._source.require_allowed(deployment)
            async with self._hold_fetch_slot(), self._source.fetch(deployment) as fetched:
                self._require_free(deployment.name, owner, adapters)
                base = deployment.base or self._guess_base(adapters, fetched)
                path, directory = fetched.path, fetched.directory
                build_record = self._create_record_builder(deployment, fetched.commit, actor)
                await adapters.load(
                    AdapterRequest(
                        deployment.name, path, base, True, directory, actor.may_use, build_record, owner
                    )
                )
                return self._report_deployed(deployment.name, owner)

    async def remove(self, name: str, actor: Actor) -> None:
        """Removes a name at once. Running requests finish. Raises ModelNotFound, and PermissionDenied for the
        operator's adapter if the actor is not the operator."""
        adapters = self._require_adapters()
        if name in self._models:
            self.find(name, actor)
        with _rename_fields():
            await unload_adapter(self._models, adapters, name, actor)

    def find(self, name: str, actor: Actor) -> DeployedAdapter:
        """Returns the adapter of a name that the actor's key allows. Raises ModelNotFound."""
        model = self._models.find_adapter(name, actor.project) if actor.may_use(name) else None
        if model is None:
            raise ModelNotFound(f"the LoRA {name[:100]!r} does not exist", param="name")
        return self._build_record(model, actor)

    def list_deployed(self, actor: Actor) -> Iterator[DeployedAdapter]:
        """Returns the records of all adapters that the actor's key allows. Adapters that were not deployed
        have a record, too."""
        return (
            self._build_record(model, actor)
            for model in self._models.list_usable(actor)
            if model.parent is not None
        )

    def find_base(self, name: str, actor: Actor) -> DeployedBase:
        """Returns the base model of a name that the actor's key allows. Raises ModelNotFound."""
        for model in self.list_bases(actor):
            if model.name == name:
                return model
        raise ModelNotFound(f"the base model {name[:100]!r} does not exist", param="name")

    def list_bases(self, actor: Actor) -> Iterator[DeployedBase]:
        """Returns all base models that the actor's key allows."""
        bases = (model for model in self._models.list_bases() if actor.may_use(model.name))
        return (DeployedBase(model.name, model.created) for model in bases)

    def _require_adapters(self) -> AdapterRegistry:
        """Returns the adapter registry. Raises PermissionDenied if callers cannot deploy."""
        if self._adapters is None:
            raise PermissionDenied(DEPLOYING_IS_OFF)
        return self._adapters

    def _require_free(self, name: str, owner: str | None, adapters: AdapterRegistry) -> None:
        """Raises InvalidValue if the name belongs to a model that was not deployed, or if a project wants a
        name of the operator. Raises PermissionDenied if projects may have no adapters."""
        if owner is not None:
            adapters.require_project_adapters()
        if name not in self._models:
            adapters.require_no_alias(name)
            return
        if owner is not None:
            raise InvalidValue(f"{name!r} is a name of the operator; choose another", param="name")
        if self._models.get(name).deployed is not None:
            return
        holder = (
            "a base model" if self._models.get(name).parent is None else "an adapter that was not deployed"
        )
        raise InvalidValue(f"{name!r} is the name of {holder}; choose another", param="name")

    @asynccontextmanager
    async def _hold_fetch_slot(self) -> AsyncIterator[None]:
        """Waits for a free fetch slot, and holds it until the block ends. Raises Overloaded if too many
        deployments wait."""
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} deployments wait already; try again later")
        self._waiting += 1
        try:
            await self._fetch_slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._fetch_slots.release()

    def _guess_base(self, adapters: AdapterRegistry, adapter: FetchedAdapter) -> str | None:
        """Returns the base model that the adapter's configuration names. Returns None if there is only one
        base model, or if the configuration does not match exactly one."""
        if len(adapters.bases) == 1 or adapter.base is None:
            return None
        names = {adapter.base.casefold(), adapter.base.rpartition("/")[2].casefold()}
        bases = [base for base in adapters.bases if base.casefold() in names]
        return bases[0] if len(bases) == 1 else None

    def _create_record_builder(
        self, deployment: DeploymentRequest, commit: str | None, actor: Actor
    ) -> Callable[[str], DeployedAdapter]:
        """Returns a function that builds the record of a deployment from the base model's name."""

        def build_record(base: str) -> DeployedAdapter:
            now = int(self._clock.wall())
            return DeployedAdapter(
                deployment.name, base, deployment.model_name, deployment.source, now, commit, actor
            )

        return build_record

    def _report_deployed(self, name: str, owner: str | None) -> DeployedAdapter:
        """Logs and returns the new deployment."""
        model = self._models.find_own(name, owner)
        deployed = None if model is None else model.deployed
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

    def _build_record(self, model: Model, actor: Actor) -> DeployedAdapter:
        """Returns the record of a deployment. Only the operator and actors in the creator's project see its
        creator. An adapter that nobody deployed gets a record of origin LOCAL."""
        deployed = model.deployed
        if deployed is not None:
            creator = deployed.creator
            may_see_creator = actor.admin or (creator is not None and creator.project == actor.project)
            return deployed if may_see_creator else replace(deployed, creator=None)
        content_id = f"sha256:{model.adapter.digest}" if model.adapter else model.name
        return DeployedAdapter(model.name, model.parent or "", content_id, AdapterOrigin.LOCAL, model.created)


async def unload_adapter(models: ModelRegistry, adapters: AdapterRegistry, name: str, actor: Actor) -> None:
    """Removes an adapter's name. A project can remove only its own adapters, and the operator all that it can
    see. Raises ModelNotFound, also for another project's adapter, and PermissionDenied for the operator's."""
    if not actor.may_use(name):
        raise ModelNotFound(f"the adapter {name[:100]!r} cannot be found", param="lora_name")
    owner = actor.adapter_owner
    model = models.find_adapter(name, actor.project)
    if owner is not None:
        adapters.require_project_adapters()
        if model is not None and model.project is None:
            raise PermissionDenied(f"the adapter {name} is the operator's", param="lora_name")
    elif model is not None:
        owner = model.project
    await adapters.unload(name, owner)


def _require_relative(deployment: DeploymentRequest) -> str:
    """Returns the requested path, which must be relative to the operator's directories. Raises InvalidValue
    for an absolute path, since the answer would show it."""
    if deployment.model_name.startswith("/"):
        raise InvalidValue(
            "model_name must be a relative path, below one of the directories that the operator allows",
            param="model_name",
        )
    return deployment.model_name


@contextmanager
def _rename_fields() -> Iterator[None]:
    """Gives errors in the block the field names of a deployment."""
    try:
        yield
    except RequestError as error:
        if error.param not in DEPLOYMENT_FIELDS:
            raise
        renamed = type(error)(
            error.message, param=DEPLOYMENT_FIELDS[error.param], retry_after=error.retry_after
        )
        raise renamed from None
