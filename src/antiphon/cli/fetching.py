"""Model files from elsewhere, for the commands: the hub and the cache that the settings name, and how far a
download is, as a bar on a terminal and as a line elsewhere. The work is that of `weights.hub.download`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from antiphon.cli.serve_options import ServeOptions, named_model
from antiphon.settings.models import HubSettings, ModelSettings
from antiphon.settings.schema import change_model
from antiphon.weights.hub.cache import HubCache, default_directory
from antiphon.weights.hub.download import FetchProgress, Hub, Stage, Tell
from antiphon.weights.hub.reference import is_reference, parse

if TYPE_CHECKING:
    from rich.progress import TaskID


def cache_of(settings: HubSettings) -> HubCache:
    """Where fetched models lie."""
    if settings.cache:
        return HubCache(Path(settings.cache).expanduser().absolute())
    return HubCache(default_directory(os.environ, Path.home(), sys.platform).absolute())


def hub_of(settings: HubSettings) -> Hub:
    """The hub, with that cache."""
    return Hub(cache_of(settings), endpoint=settings.endpoint, offline=settings.offline)


def fetch(model: ModelSettings, settings: HubSettings) -> ModelSettings:
    """The model with a local path: its own, or that of the file it names on the hub. Raises
    StartupError."""
    if not is_reference(model.path):
        return model
    reference = parse(model.path)
    with show_progress(sys.stderr) as tell:
        return change_model(model, path=str(hub_of(settings).local(reference, tell).path))


def fetch_named(text: str) -> None:
    """Fetches what `--model TEXT` names on the hub, if it is not here, and shows how far that is: a server
    that is started then finds it. Raises StartupError."""
    if not is_reference(str(named_model(text)["path"])):
        return
    settings = ServeOptions(models=[text]).settings()
    for model in settings.models:
        fetch(model, settings.hub)


@contextmanager
def show_progress(stream: TextIO) -> Iterator[Tell]:
    """Shows on a stream how far it is, until the block ends: bars on a terminal, and elsewhere one line when
    a stage begins, which logs keep."""
    if not stream.isatty():
        begun: set[Stage] = set()

        def tell_line(progress: FetchProgress) -> None:
            if progress.stage not in begun:
                begun.add(progress.stage)
                size = f"{progress.size / 1e6:.1f} MB"
                print(f"antiphon: {progress.stage} {progress.name} ({size})", file=stream, flush=True)

        yield tell_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(file=stream)) as bars:
        tasks: dict[Stage, TaskID] = {}

        def tell(progress: FetchProgress) -> None:
            if progress.stage not in tasks:
                tasks[progress.stage] = bars.add_task(f"{progress.stage} {progress.name}")
            bars.update(tasks[progress.stage], completed=progress.done, total=progress.size)

        yield tell
