"""A server whose one model `m` is rendered over a scripted token engine and takes adapters from a directory:
everything as it ships but the library.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import ServiceKey
from antiphon.dialects.empower.dialect import Empower
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.models import Aliases
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import AntiphonError
from antiphon.http.state import AppState
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget
from antiphon.pipeline.deployments import Deployments
from antiphon.pipeline.run import Pipeline
from antiphon.processes.sandbox import JobRunner, JobStopped, Limits, Stop, run_job
from antiphon.rendering.adapter_renderer import AdapterRenderer
from antiphon.rendering.renderer import Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon.testing import FakeClock, ScriptedEngine, ScriptedTokenEngine
from antiphon.weights.adapters.hub_adapters import NO_TOKEN, HubAdapters
from antiphon.weights.adapters.registry import AdapterStore
from antiphon.weights.gguf import read_header
from tests.support.http_server import Reply, Served, serving_edge

LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"
MODULE = "base_model.model.model.layers.0.self_attn.v_proj"
MOST = 1 << 20


@dataclass(frozen=True)
class Lora(Served):
    """The server, with what stands behind it."""

    tokens: ScriptedTokenEngine
    base: Path
    shelf: Path
    """The directory that adapters may come from."""
    registry: Path
    key: str | None

    async def call(self, path: str, body: Any = None) -> Reply:
        return await self.ask(path, body, headers=_bearer(self.key))

    async def load(self, name: str, path: Path | str, **more: Any) -> Reply:
        return await self.call(LOAD, {"lora_name": name, "lora_path": str(path), **more})

    async def unload(self, name: str) -> Reply:
        return await self.call(UNLOAD, {"lora_name": name})

    async def names(self) -> list[str]:
        return [model["id"] for model in (await self.call("/v1/models")).json()["data"]]

    def peft(self, name: str, value: float = 1.0, **config: object) -> Path:
        """An adapter for the model as PEFT saves it, all of whose numbers are one."""
        return write_peft(self.shelf / name, self.base, value, **config)


def _bearer(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def write_peft(directory: Path, base: Path, value: float = 1.0, **config: object) -> Path:
    """An adapter of rank 2 for one matrix."""
    inputs, outputs = read_header(base).shapes["blk.0.attn_v.weight"]
    directory.mkdir()
    matrices = {
        f"{MODULE}.lora_A.weight": np.full((2, inputs), value, np.float32),
        f"{MODULE}.lora_B.weight": np.full((outputs, 2), value, np.float32),
    }
    save_file(matrices, directory / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 4} | config
    (directory / "adapter_config.json").write_text(json.dumps(said))
    return directory


async def unproved(_: object) -> None:
    """A template of our own needs no proof."""


def _adapt(renderer: Renderer, digest: str) -> tuple[AdapterRenderer]:
    """The engine of one adapter, for a model with one host."""
    return (AdapterRenderer(renderer, digest),)


async def run_here(
    target: str, payload: Mapping[str, object], _: Limits, variables: Mapping[str, str]
) -> object:
    """Runs a sandbox's job in a thread of this process, for tests of other things than its isolation.

    The caller's environment stands for the variables. One job at a time: those of the hub share a session.
    """
    assert variables.items() <= os.environ.items() | NO_TOKEN.items()
    module, name = target.split(":")
    try:
        result = await asyncio.to_thread(getattr(import_module(module), name), payload)
    except AntiphonError:
        raise
    except Exception as problem:
        raise JobStopped(Stop.CRASH, "the helper ended with status 1 and no answer") from problem
    return json.loads(json.dumps(result))


@asynccontextmanager
async def lending(
    tmp_path: Path,
    base: Path,
    *,
    key: str | None = None,
    tokens: ScriptedTokenEngine | None = None,
    models: tuple[str, ...] = ("m",),
    hub: str | None = None,
    repositories: tuple[str, ...] = ("*",),
    aliases: Mapping[str, str] | None = None,
    knowing: tuple[TokenVerifier, ...] = (),
    isolated: bool = False,
) -> AsyncIterator[Lora]:
    """The server, while the context lasts; `hub`: the address of one that callers may deploy from.
    `isolated`: fetches and reads adapters in the sandbox's processes, as it ships."""
    shelf, registry = tmp_path / "shelf", tmp_path / "registry"
    shelf.mkdir(exist_ok=True)
    made = tokens or ScriptedTokenEngine()
    renderers = {name: Renderer(made, prove=unproved) for name in models}
    served = ModelRegistry(
        tuple(Model(name, (ModelRoute(renderer),), 7) for name, renderer in renderers.items()),
        Aliases(aliases or {}, Fireworks.aliases),
    )
    metrics, clock = Metrics(), FakeClock()
    run: JobRunner = run_job if isolated else run_here
    keeper = AdapterStore(registry, [shelf], MOST, run=run)
    homes = {
        name: AdapterTarget(made, partial(keeper.keep, base=str(base)), partial(_adapt, renderer))
        for name, renderer in renderers.items()
    }
    adapters = AdapterRegistry(served, homes, clock, metrics)
    fetching = HubAdapters(repositories if hub else (), registry, MOST, hub, pauses=(0.0,), run=run)
    verifiers: tuple[TokenVerifier, ...] = (*knowing, *([ServiceKey(key)] if key else []))
    pipeline = Pipeline(served, metrics, restart_patience=0.0)
    edge = AppState(pipeline, served, OpenAI(), ServerSettings(), verifiers, metrics=metrics)
    deployments = Deployments(served, adapters, fetching, clock)
    edge = replace(edge, adapters=adapters, deployments=deployments, prefixed_dialects=(Empower(),))
    async with serving_edge(edge) as (port, connections):
        yield Lora(port, ScriptedEngine(), edge, connections, made, base, shelf, registry, key)
