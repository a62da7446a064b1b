"""`antiphon serve`: loads the settings, checks the model files, starts the supervisor with both, and prints
the panel.

Every error that can be found without starting a process is reported here, in one line.
"""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from antiphon.assembly.providers import require_providers
from antiphon.cli.local_servers import publish_notice
from antiphon.cli.model_files import fetch, find_local, keep_adapters
from antiphon.cli.output import escape_unprintable
from antiphon.cli.panel import describe_start, format_panel
from antiphon.cli.serve_options import ServeOptions, find_home
from antiphon.cli.vllm_models import size_vllm_model
from antiphon.errors import AntiphonError, SettingsError
from antiphon.processes.reload import ReloadHooks
from antiphon.processes.supervisor import ServingInfo, supervise
from antiphon.settings.changes import list_restart_settings
from antiphon.settings.models import MODEL_DEFAULTS, ModelSettings, list_parked
from antiphon.settings.schema import (
    Settings,
    change_model,
    find_knowledge_database,
    list_settings,
    replace_knowledge,
    replace_models,
    replace_reloaded,
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
)

KNOWLEDGE = "knowledge"
"""The directory of knowledge tables in the home."""

GENERATING = ("cells", "layout", "step_latency", "keep_prefixes", "tool_calls", "reasoning")
"""Settings of a model that only concern the generation of tokens."""

SPOOL_OF_ONE = 4 * MIB
"""Least bytes of the spool for each HTTP process: its current file, its spare file, and room for one more."""

WEIGHTS_SHARE = 0.5
"""Share of the free memory up to which weights are copied into memory. KV caches and buffers need the
rest."""


def run(serve_options: ServeOptions) -> int:
    """Serves until a signal; returns the exit status."""
    source = SettingsSource(serve_options)
    is_json = serve_options.find_log_format() == "json"
    if is_json:
        configure("info", "json")  # until the settings are read
    try:
        settings = source.load()
        configure(settings.log.level, settings.log.format)
        with publish_notice(find_home(os.environ, Path.home())) as notice:

            def serving(info: ServingInfo) -> None:
                notice.serves(info.url, settings.server.workers)
                if is_json:
                    announce("serving", **describe_start(settings, info))
                if not is_json or sys.stdout.isatty():
                    print(format_panel(settings, info), flush=True)

            reload = ReloadHooks(source.load_again, notice.record_reload)
            return supervise(settings, serving, on_replaced=notice.record_restart, reload=reload)
    except AntiphonError as error:
        if is_json:
            record("serve_failed", logging.ERROR, error=error.message)
        else:
            print(f"antiphon: {escape_unprintable(error.message)}", file=sys.stderr)
        return 1


def prepare_settings(serve_options: ServeOptions) -> Settings:
    """Fetches, checks and sizes every model, keeps every adapter, and returns the settings.

    Raises a StartupError.
    """
    return SettingsSource(serve_options).load()


class SettingsSource:
    """The settings of one server: its flags, environment and file, read at its start and at each reload."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._at_start = Settings()
        """The settings as they were read at the start."""
        self._models: dict[ModelSettings, ModelSettings] = {}
        """Each local model so far as it is served, by the model as it was read."""

    def load(self) -> Settings:
        """Loads the settings for the start. Raises a StartupError."""
        settings = self._at_start = self._read()
        models = self._size_models([fetch(model, settings.hub) for model in settings.models], settings)
        settled = keep_adapters(replace_models(settings, models))
        require_loadable(settled)
        settled = place_knowledge(settled)
        return prepare_keys(settled) if settings.keys.enabled else settled

    def load_again(self, current: Settings) -> tuple[Settings, tuple[str, ...]]:
        """Loads what a reload applies, over the current settings. Also returns the names of settings that
        only a restart applies. A model that is the same keeps its size. Raises a StartupError."""
        settings = self._read()
        models = [find_local(model, settings.hub) for model in settings.models]
        changed = replace_models(settings, self._size_models(models, settings))
        loaded = replace_reloaded(current, changed)
        require_loadable(loaded)
        return loaded, list_unreloaded(self._at_start, settings, loaded)

    def _read(self) -> Settings:
        """Reads and checks the settings. Raises SettingsError."""
        settings = self._options.load_settings()
        require_keys(settings)
        require_storage(settings)
        require_providers(settings, os.environ)
        return settings

    def _size_models(self, models: list[ModelSettings], settings: Settings) -> list[ModelSettings]:
        """Returns the models with their sizes, and remembers them. `models` have local paths."""
        sized_models = self._models
        new = [found for read, found in zip(settings.models, models, strict=True) if read not in sized_models]
        sized = iter(place_weights([size_model(model) for model in new], measure_available_memory()))
        now = {read: sized_models[read] if read in sized_models else next(sized) for read in settings.models}
        sized_models.update(now)
        return list(now.values())


def list_unreloaded(at_start: Settings, read: Settings, loaded: Settings) -> tuple[str, ...]:
    """Returns the settings that were read and differ from those that act, since only a restart applies
    them."""
    loaded_names = {adapter.name for adapter in loaded.adapters}
    before = {adapter.name: adapter.path for adapter in at_start.adapters if adapter.name in loaded_names}
    now = {adapter.name: adapter.path for adapter in read.adapters}
    return (*list_restart_settings(at_start, read), *(() if before == now else ("adapters",)))


def place_knowledge(settings: Settings) -> Settings:
    """Returns the settings with the absolute directory of knowledge tables. It is made at the first use."""
    configured = settings.knowledge.directory or find_home(os.environ, Path.home()) / KNOWLEDGE
    return replace_knowledge(settings, str(Path(configured).expanduser().absolute()))


def prepare_keys(settings: Settings) -> Settings:
    """Prepares the store where keys are on. The database's library is imported only here."""
    from antiphon.cli.bootstrap import bootstrap_store

    require_spool(settings)
    return bootstrap_store(settings, os.environ, Path.home())


def require_keys(settings: Settings) -> None:
    """Raises SettingsError for settings without effect where keys are off. Other commands may read them."""
    for section in () if settings.keys.enabled else ("keys", "limits", "ledger"):
        idle = [
            f"{section}.{name} ({variable})"
            for name, variable, _, usual in list_settings(section)
            if getattr(getattr(settings, section), name) != usual
        ]
        if idle:
            raise SettingsError(
                f"the settings of {section} act on nothing without keys: set keys.enabled "
                f"(ANTIPHON_KEYS=true), or leave out {', '.join(idle)}"
            )


def require_storage(settings: Settings) -> None:
    """Raises SettingsError for knowledge tables that would be in a database that there is not."""
    find_knowledge_database(settings)


def require_spool(settings: Settings) -> None:
    """Raises SettingsError if the spool is too small for the files of all HTTP processes."""
    workers, spool_bytes = settings.server.workers, settings.ledger.spool_bytes
    if spool_bytes < workers * SPOOL_OF_ONE:
        raise SettingsError(
            f"{workers} workers need a spool of {workers * SPOOL_OF_ONE:,} bytes, and ledger.spool_bytes "
            f"(ANTIPHON_SPOOL_BYTES) says {spool_bytes:,}: raise it, or serve with fewer workers"
        )


def require_loadable(settings: Settings) -> None:
    """Raises SettingsError for a model that cannot be loaded on request as its settings say."""
    budget = settings.engine.memory_budget
    on_request = list_parked(settings.models)
    for model in settings.models:
        if model.keep_alive is not None and model.name not in on_request:
            raise SettingsError(
                f'keep_alive of the model {model.name} acts only with load = "request"; add that, or leave '
                "keep_alive out"
            )
        if budget is not None and model.name in on_request and (size := estimate_memory(model)) > budget:
            raise SettingsError(
                f"the model {model.name} needs {size:,} bytes, and engine.memory_budget is {budget:,}: raise "
                "it, or lower the model's context_length or sequences"
            )
    for adapter in settings.adapters:
        if adapter.model in on_request:
            raise SettingsError(
                f"the adapter {adapter.name} adapts a model that is loaded on request; load the model at "
                "the start, or load the adapter by its API"
            )


def find_refusals(settings: Settings) -> Iterator[SettingsError]:
    """Yields an error for each combination of settings that a start refuses."""
    spool = (require_spool,) if settings.keys.enabled else ()
    for rule in (require_keys, require_storage, *spool):
        try:
            rule(settings)
        except SettingsError as error:
            yield error


def place_weights(models: list[ModelSettings], free: int) -> list[ModelSettings]:
    """Decides for `auto` models whether their weights are copied into memory: up to WEIGHTS_SHARE of the free
    bytes."""
    embedded = [model for model in models if model.engine == "llama"]
    weight_bytes = sum(
        read_header(Path(model.path)).size * model.hosts for model in embedded if model.weights != "file"
    )
    placement = "memory" if weight_bytes <= WEIGHTS_SHARE * free else "file"
    return [
        change_model(model, weights=placement) if model in embedded and model.weights == "auto" else model
        for model in models
    ]


def size_model(model: ModelSettings) -> ModelSettings:
    """Returns the model with an absolute path and a context length that its weights and the memory allow.
    Several hosts share the memory."""
    if model.engine == "vllm":
        return size_vllm_model(model)
    free = measure_available_memory() // model.hosts
    path = Path(model.path).expanduser().absolute()
    header = read_header(path)
    if model.context_length and header.context_length and model.context_length > header.context_length:
        raise SettingsError(
            f"the context length {model.context_length} of {model.name} is more than the "
            f"{header.context_length} that its weights were made for; leave it out or lower it"
        )
    if header.embeds:
        _require_embedding(model)
        return change_model(
            model, path=str(path), context_length=fit_text_length(header, model.context_length, free)
        )
    size = fit_cache(header, read_cache_options(model), free)
    fits_whole = size.cells >= size.context_length * model.sequences
    return change_model(
        model, path=str(path), context_length=size.context_length, cells=None if fits_whole else size.cells
    )


def _require_embedding(model: ModelSettings) -> None:
    """Raises SettingsError if an embedding model has a setting that only concerns the generation of
    tokens."""
    for name in GENERATING:
        if getattr(model, name) != MODEL_DEFAULTS[name]:
            raise SettingsError(
                f"{model.name} is an embedding model, where {name} has nothing to act on; leave {name} out"
            )


def read_cache_options(model: ModelSettings) -> CacheOptions:
    """Returns the options of the model's KV cache."""
    pool = model.layout == "pool" and not model.exact
    return CacheOptions(model.sequences, model.context_length, model.cells, model.kv_type, pool)
