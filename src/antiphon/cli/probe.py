"""`python -m antiphon.cli.probe`: opens the engine's library, and a model when told to, in a process that may
die of it.

One line of JSON comes in: the library setting and the models to load. Before and after each step a line of
JSON goes out, so that whoever reads them knows at which step this process ended.
"""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from antiphon.engines.base import LoadSpec
from antiphon.engines.llama.embedding_model import load_any
from antiphon.engines.llama.libllama_find import Place, discovered, find_library
from antiphon.engines.llama.machine import best_threads, prepare_environment, usable_cpus
from antiphon.errors import AntiphonError, LibraryError
from antiphon.ipc.frames import to_line  # what an engine host imports, so that its lack is seen here


def tell(step: str, **values: object) -> None:
    """A line about what comes, or what came of it."""
    sys.stdout.buffer.write(to_line({"step": step, **values}))
    sys.stdout.buffer.flush()


def main() -> None:
    """Everything, once."""
    order = json.loads(sys.stdin.readline())
    logging.disable()  # what is passed over is told, not logged
    prepare_environment()
    tell("machine", threads=best_threads(), processors=len(usable_cpus()))
    if find(order["library"]):
        for values in order["models"]:
            load(LoadSpec(**values))


def find(explicit: str | None) -> bool:
    """Opens the first library that can be used, as the engine does, and tells of each it tried."""
    for place in candidates(explicit):
        tell("opening", path=str(place.path), origin=place.origin)
        try:
            library, _ = find_library(explicit, iter([place]))
        except LibraryError as error:
            tell("refused", message=error.message)
            continue
        tell("opened", version=library.version(), features=library.cpu_features())
        return True
    return False


def candidates(explicit: str | None) -> Iterator[Place]:
    """What the engine would try, in its order."""
    if explicit:
        yield Place(Path(explicit), "the library setting")
    else:
        yield from discovered()


def load(spec: LoadSpec) -> None:
    """Loads one model and closes it again."""
    tell("loading", model=spec.model)
    try:
        loaded = load_any(spec)
    except AntiphonError as error:
        tell("not_loaded", message=error.message)
        return
    tell("loaded", library=loaded.info.library)
    loaded.close()


if __name__ == "__main__":
    main()
