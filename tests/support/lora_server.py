"""A server for tests of LoRA adapters: the model `m` on a scripted token engine, adapters from a directory.

Only llama.cpp is replaced; all other parts are real.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from antiphon.assembly.dialects import ALIASES, create_dialects
from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import SettingsKey
from antiphon.dialects.base import DialectOptions
from antiphon.domain.models import Aliases
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import AntiphonError
from antiphon.http.state import AppState
from antiphon.pipeline.adapters import AdapterRegistry, AdapterTarget
from antiphon.pipeline.deployments import Deployments
from antiphon.pipeline.run import Pipeline
from antiphon.processes.sandbox import JobRunner, JobStopped, Limits, Stop, run_job
from antiphon.rendering.renderer import AdapterRenderer, Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon.weights.adapter_store import AdapterStore
from antiphon.weights.gguf import read_header
from antiphon.weights.hub.adapters import NO_TOKEN, HubAdapters
from antiphon_testing import FakeClock, ScriptedEngine, ScriptedTokenEngine
from tests.support.http_server import ProcessServed, Reply, serving_edge
from tests.support.jobs import let_jobs_start

LOAD = "/v1/load_lora_adapter"
UNLOAD = "/v1/unload_lora_adapter"
MODULE = "base_model.model.model.layers.0.self_attn.v_proj"
MOST = 1 << 20


@dataclass(frozen=True)
class Lora(ProcessServed):
    """The server, its engine and its directories."""

    tokens: ScriptedTokenEngine
    base: Path
    shelf: Path
    """The directory from which adapters may be loaded."""
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
        """Writes an adapter in PEFT's format whose weights all equal `value`."""
        return write_peft(self.shelf / name, self.base, value, **config)


def _bearer(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def write_peft(directory: Path, base: Path, value: float = 1.0, **config: object) -> Path:
    """Writes an adapter of rank 2 for one matrix in PEFT's format."""
    inputs, outputs = read_header(base).shapes["blk.0.attn_v.weight"]
    directory.mkdir()
    matrices = {
        f"{MODULE}.lora_A.weight": np.full((2, inputs), value, np.float32),
        f"{MODULE}.lora_B.weight": np.full((outputs, 2), value, np.float32),
    }
    save_file(matrices, directory / "adapter_model.safetensors")
    adapter_config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4} | config
    (directory / "adapter_config.json").write_text(json.dumps(adapter_config))
    return directory


async def unproved(_: object) -> None:
    """Skips the proof of a chat template, because the test wrote it."""


def _adapt(renderer: Renderer, digest: str) -> tuple[AdapterRenderer]:
    """Builds the engine of one adapter."""
    return (AdapterRenderer(renderer, digest),)


def create_thread_runner() -> JobRunner:
    """Runs sandbox jobs in a thread of this process, for tests that do not test isolation.

    A job sees this process's environment. Jobs of the hub share a session, so only one runs at a time.
    """
    turn = asyncio.Lock()

    async def run(
        target: str, payload: Mapping[str, object], _: Limits, variables: Mapping[str, str]
    ) -> object:
        assert variables.items() <= os.environ.items() | NO_TOKEN.items()
        module, name = target.split(":")
        try:
            async with turn:
                result = await asyncio.to_thread(getattr(import_module(module), name), payload)
        except AntiphonError:
            raise
        except Exception as problem:
            raise JobStopped(Stop.CRASH, "the helper ended with status 1 and no output") from problem
        return json.loads(json.dumps(result))

    return run


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
    """Runs the server. `hub`: address of a hub from which callers may deploy. `isolated`: run jobs in sandbox
    processes, as in production."""
    shelf, registry = tmp_path / "shelf", tmp_path / "registry"
    shelf.mkdir(exist_ok=True)
    token_engine = tokens or ScriptedTokenEngine()
    renderers = {name: Renderer(token_engine, prove=unproved) for name in models}
    models_registry = ModelRegistry(
        tuple(Model(name, (ModelRoute(renderer),), 7) for name, renderer in renderers.items()),
        Aliases(aliases or {}, ALIASES),
    )
    metrics, clock = Metrics(), FakeClock()
    run: JobRunner = run_job if isolated else create_thread_runner()
    adapter_store = AdapterStore(registry, [shelf], MOST, run=run)
    targets = {
        name: AdapterTarget(
            token_engine, partial(adapter_store.store, base=str(base)), partial(_adapt, renderer)
        )
        for name, renderer in renderers.items()
    }
    adapters = AdapterRegistry(models_registry, targets, clock, metrics)
    hub_adapters = HubAdapters(repositories if hub else (), registry, MOST, hub, pauses=(0.0,), run=run)
    verifiers: tuple[TokenVerifier, ...] = (*knowing, *([SettingsKey(key)] if key else []))
    pipeline = Pipeline(models_registry, metrics, restart_patience=0.0)
    dialect, *others = create_dialects(DialectOptions())
    edge = AppState(
        pipeline,
        models_registry,
        dialect,
        ServerSettings(),
        verifiers,
        metrics=metrics,
        adapters=adapters,
        deployments=Deployments(models_registry, adapters, hub_adapters, clock),
        prefixed_dialects=tuple(others),
    )
    with let_jobs_start():
        async with serving_edge(edge) as (port, connections):
            yield Lora(port, ScriptedEngine(), edge, connections, token_engine, base, shelf, registry, key)
