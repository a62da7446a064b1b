"""Adapters that are there from the start: checked against their models, converted where they come from PEFT,
kept in the registry. Everything wrong with them is said before a process is started.
"""

import os
from pathlib import Path

from antiphon.errors import ModelFileError, SettingsError
from antiphon.settings.models import AdapterSettings
from antiphon.settings.schema import Settings, with_assigned_models, with_lora
from antiphon.weights.adapters.import_job import AdapterFile, keep_adapter
from antiphon.weights.adapters.registry import default_registry, share
from antiphon.weights.gguf import read_header


def keep_adapters(settings: Settings) -> Settings:
    """The settings with absolute places, and each adapter's path that of its kept file. Raises a
    StartupError."""
    settings = assign_adapters(settings)
    said = settings.lora.registry or default_registry(os.environ, Path.home())
    registry = Path(said).expanduser().absolute()
    directories = [directory(said) for said in settings.lora.directories]
    paths = {}
    for adapter in settings.adapters:
        (base,) = (model.path for model in settings.models if model.name == adapter.model)
        try:
            found = check_adapter(adapter, base, registry)
            if settings.engine.user is not None:
                share(found.path)
        except OSError as problem:
            raise SettingsError(
                f"adapters cannot be kept in {registry}: {problem.strerror or problem}; name another "
                "directory with ANTIPHON_LORA_REGISTRY"
            ) from None
        paths[adapter.name] = str(found.path)
    return with_lora(settings, str(registry), directories, paths)


def assign_adapters(settings: Settings) -> Settings:
    """The settings in which each adapter says which model it adapts, now that the files of all models are
    here: one that makes embeddings takes none. Raises a StartupError."""
    if not settings.adapters:
        return settings
    embedding = [model.name for model in settings.models if read_header(Path(model.path)).embeds]
    return with_assigned_models(settings, embedding)


def check_adapter(adapter: AdapterSettings, base: str, registry: Path) -> AdapterFile:
    """The adapter, checked for the model at `base` and kept in a directory. Raises ModelFileError, which
    names it and the remedy."""
    source = Path(adapter.path).expanduser().absolute()
    try:
        return keep_adapter(source, read_header(Path(base)), registry)
    except ModelFileError as refused:
        raise ModelFileError(
            f"the adapter {adapter.name} cannot be served: {refused.message.rstrip('.')}; mend it, name "
            "another file with --lora NAME=PATH, or leave it out"
        ) from None


def directory(said: str) -> str:
    """A directory that callers may load from. Raises SettingsError for one that cannot be."""
    path = Path(said).expanduser().absolute()
    if not path.is_dir():
        raise SettingsError(
            f"{path} is no directory, so nothing can be loaded from it; make it, or mend "
            "ANTIPHON_LORA_DIRECTORIES"
        )
    if path == Path(path.root):
        raise SettingsError(
            "ANTIPHON_LORA_DIRECTORIES names the root of all files; name the directory that holds adapters"
        )
    return str(path)
