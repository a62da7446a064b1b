"""Counts calls and lists suspended frames in the HTTP process of Antiphon.

Python imports this module at its start, because its folder is on PYTHONPATH. Each signal is answered by a
file of JSON, named by ANSWER_VARIABLE. The counts are those of the main thread, which runs the event loop.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections import Counter
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType

ANSWER_VARIABLE = "BENCHMARK_ANSWER"
COUNT_SIGNAL = signal.SIGRTMIN + 1
"""Begins to count calls, and ends it the next time."""
FRAMES_SIGNAL = signal.SIGRTMIN + 2

counts: Counter[tuple[str, str]] = Counter()
"""Calls by event of `sys.setprofile` and by the file of the called function, or of the caller of C."""


def count_call(frame: FrameType, event: str, _: object) -> None:
    """Counts one event of `sys.setprofile`."""
    counts[event, frame.f_code.co_filename] += 1


def toggle_count(_: int, __: object) -> None:
    """Begins to count; the next time answers the counts."""
    is_counting = sys.getprofile() is not None
    sys.setprofile(None)
    answer({"counts": [(event, name_module(path), number) for (event, path), number in counts.items()]})
    counts.clear()
    if not is_counting:
        sys.setprofile(count_call)


def answer_frames(_: int, __: object) -> None:
    """Answers the suspended frames of each task, the outermost first."""
    answer({"chains": [list_frames(task.get_coro()) for task in asyncio.all_tasks()]})


def list_frames(awaited: object) -> list[str]:
    """Lists the frames from a coroutine down to what it waits for."""
    frames: list[str] = []
    while awaited is not None:
        match awaited:
            case CoroutineType():
                code, awaited = awaited.cr_code, awaited.cr_await
            case AsyncGeneratorType():
                code, awaited = awaited.ag_code, awaited.ag_await
            case GeneratorType():
                code, awaited = awaited.gi_code, awaited.gi_yieldfrom
            case _:  # a step of an async generator, or the wrapper of a coroutine
                kinds = (AsyncGeneratorType, CoroutineType)
                awaited = next((each for each in gc.get_referents(awaited) if isinstance(each, kinds)), None)
                continue
        frames.append(f"{name_module(code.co_filename)}: {code.co_qualname}")
    return frames


def name_module(path: str) -> str:
    """Returns the path below the folder of sources or packages."""
    return path.rpartition("/src/")[2].rpartition("/site-packages/")[2]


def answer(values: object) -> None:
    """Writes the answer. The file is complete when it appears."""
    path = os.environ[ANSWER_VARIABLE]
    with open(path + ".new", "w", encoding="ascii") as file:
        json.dump(values, file)
    os.rename(path + ".new", path)


if ANSWER_VARIABLE in os.environ and "antiphon.assembly" in sys.orig_argv:
    signal.signal(COUNT_SIGNAL, toggle_count)
    signal.signal(FRAMES_SIGNAL, answer_frames)
