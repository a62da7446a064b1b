"""Model files from elsewhere, for the commands: the hub and the cache that the settings name, and how far a
download is, as a bar on a terminal and as a line elsewhere. The work is that of `weights.hub`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from antiphon.cli.asked import Asked, named_model
from antiphon.settings import changed
from antiphon.settings_hub import HubSettings
from antiphon.settings_model import ModelSettings
from antiphon.weights.cache import Cache, default_directory
from antiphon.weights.hub import Hub, Progress, Stage, Tell
from antiphon.weights.reference import is_reference, parse


def cache_of(settings: HubSettings) -> Cache:
    """Where fetched models lie."""
    if settings.cache:
        return Cache(Path(settings.cache).expanduser().absolute())
    return Cache(default_directory(os.environ, Path.home(), sys.platform).absolute())


def hub_of(settings: HubSettings) -> Hub:
    """The hub, with that cache."""
    return Hub(cache_of(settings), endpoint=settings.endpoint, offline=settings.offline)


def fetched(model: ModelSettings, settings: HubSettings) -> ModelSettings:
    """The model with a local path: its own, or that of the file it names on the hub. Raises
    StartupError."""
    if not is_reference(model.path):
        return model
    reference = parse(model.path)
    with shown(sys.stderr) as tell:
        return changed(model, path=str(hub_of(settings).local(reference, tell).path))


def here(text: str) -> None:
    """Fetches what `--model TEXT` names on the hub, if it is not here, and shows how far that is: a server
    that is started then finds it. Raises StartupError."""
    if not is_reference(str(named_model(text)["path"])):
        return
    settings = Asked(models=[text]).settings()
    for model in settings.models:
        fetched(model, settings.hub)


@contextmanager
def shown(stream: TextIO) -> Iterator[Tell]:
    """What shows the progress on a stream until the block ends."""
    if not stream.isatty():
        yield _Lines(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(file=stream)) as bars:
        tasks = {stage: bars.add_task("", visible=False, start=False) for stage in Stage}

        def tell(progress: Progress) -> None:
            task = tasks[progress.stage]
            if not bars.tasks[task].started:
                bars.start_task(task)
            bars.update(
                task,
                description=f"{progress.stage} {progress.name}",
                completed=progress.done,
                total=progress.size,
                visible=True,
            )

        yield tell


class _Lines:
    """One line when a stage begins: logs keep what is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begun: set[Stage] = set()

    def __call__(self, progress: Progress) -> None:
        if progress.stage in self._begun:
            return
        self._begun.add(progress.stage)
        size = f"{progress.size / 1e6:.1f} MB"
        print(f"antiphon: {progress.stage} {progress.name} ({size})", file=self._stream, flush=True)
