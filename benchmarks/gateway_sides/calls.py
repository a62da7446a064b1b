"""Counts what a request takes in the HTTP process, by a hook that runs in it (hook/sitecustomize.py)."""

import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gateway_sides.hook.sitecustomize import COUNT_SIGNAL, FRAMES_SIGNAL
from benchmarks.gateway_sides.load import Load
from benchmarks.gateway_sides.servers import Side
from benchmarks.gateway_sides.upstream import HOLD

WARM_REQUESTS = 20
REQUESTS = 50
ANSWER_DEADLINE = 20.0
"""Seconds in which the hook must answer a signal."""


async def count_calls(side: Side, answer_file: Path, kind: str) -> dict[str, tuple[float, float]]:
    """Returns the calls of Python and of C for one request by package. The requests are sent one after the
    other."""
    load = Load(side.port, side.key, side.prefix, kind, 1)
    await load.connect()
    for _ in range(WARM_REQUESTS):
        await load.run(0.0)
    ask_hook(side, answer_file, COUNT_SIGNAL)
    for _ in range(REQUESTS):
        await load.run(0.0)
    counts: list[tuple[str, str, int]] = ask_hook(side, answer_file, COUNT_SIGNAL)["counts"]
    load.close()
    calls: Counter[tuple[str, str]] = Counter()
    for event, path, number in counts:
        calls[event, name_package(path)] += number
    packages = sorted({package for _, package in calls}, key=lambda each: -calls["call", each])
    return {each: (calls["call", each] / REQUESTS, calls["c_call", each] / REQUESTS) for each in packages}


def name_package(path: str) -> str:
    """Names the package of a module, or `python` for the standard library."""
    if path.startswith("/"):
        return "python"
    folders = path.split("/")[:-1]
    is_deep = folders[:2] in (["antiphon", "engines"], ["antiphon", "dialects"])
    return ".".join(folders[: 3 if is_deep else 2 if folders[:1] == ["antiphon"] else 1])


async def find_frames(side: Side, answer_file: Path) -> list[str]:
    """Finds the frames that are suspended while a buffered chat waits for the vendor, the outermost first."""
    load = Load(side.port, side.key, side.prefix, "held", 1)
    await load.connect()
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(0.0))
        await asyncio.sleep(HOLD / 2)
        chains: list[list[str]] = ask_hook(side, answer_file, FRAMES_SIGNAL)["chains"]
    load.close()
    return max(chains, key=len)


def ask_hook(side: Side, answer_file: Path, signal_number: int) -> dict[str, Any]:
    """Sends the HTTP process a signal, and waits for the hook's answer."""
    os.kill(side.find_main().pid, signal_number)
    deadline = time.monotonic() + ANSWER_DEADLINE
    while not answer_file.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the hook of the HTTP process does not answer")
        time.sleep(0.01)
    values: dict[str, Any] = json.loads(answer_file.read_text())
    answer_file.unlink()
    return values
