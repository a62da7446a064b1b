"""The engine host: one process with one engine. The supervisor starts it as `python -m
antiphon.engines.host`.

The host loads the configured model and listens once the engine is ready. At SIGTERM it ends after its calls
had a moment to end. When its standard input ends, the supervisor is gone, and the host ends at once, even
while native code runs. A crash of the engine also ends it. It opens no port and receives no caller's
credential.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import uvloop

from antiphon.engines.base import EncodingEngine, RemoteEngine, TokenEngine
from antiphon.engines.host.confine import OPEN_FILES, confine
from antiphon.engines.host.control import HostConfig, Lifeline, StatusPipe
from antiphon.engines.host.runtime import remove_unused_directory
from antiphon.engines.host.server import HostOrders, IdleUnloading, create_engine, serve_engine, unload_idle
from antiphon.errors import AntiphonError, LoadError
from antiphon.processes.ipc import FrameError, bind_private, from_line, remove_socket
from antiphon.telemetry.logs import LOGGER, configure, record, record_loop_failure

DRAIN_SECONDS = 2.0
"""Seconds that calls have to end after SIGTERM. The HTTP processes end their requests before, so few calls
are left."""

ORPHANED = 3
"""Exit status of a host whose supervisor is gone."""

ENGINE_LOST = 4
"""Exit status of a host whose engine no longer reports its load. The supervisor starts a new process with a
new engine."""


def main() -> None:
    """Runs the process. It ends by `os._exit`, because threads of the engine's library cannot be joined in
    time."""
    lifeline = Lifeline()
    try:
        config = from_line(lifeline.read_line(), HostConfig)
    except (EOFError, FrameError) as problem:
        sys.exit(f"an engine host is started by the supervisor, with its configuration on stdin: {problem}")
    run_host(lifeline, config, partial(create_engine, config.factory))


def run_host(
    lifeline: Lifeline,
    config: HostConfig,
    create: Callable[[], TokenEngine],
    open_files: int = OPEN_FILES,
) -> NoReturn:
    """Runs an engine host to its end. `create`: makes the engine. `open_files`: the limit of open files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles a terminal's Ctrl-C
    configure(config.log_level, config.log_format)
    pipe = StatusPipe(config.status_fd)
    try:
        sock = _confine_host(config, open_files)
    except AntiphonError as error:
        pipe.report_failure(error)
        sys.exit(1)
    orders = HostOrders()
    lifeline.watch(on_line=orders.receive, on_end=lambda: _exit_orphaned(config.socket))
    # A thread that wakes asyncio's loop gives up Python's lock, so the decode thread would wait until the
    # loop has sent the tokens of a step. It wakes uvloop without giving up the lock.
    status = uvloop.run(_serve(config, create, pipe, sock, orders))
    logging.shutdown()
    os._exit(status)


def _confine_host(config: HostConfig, open_files: int) -> socket.socket | None:
    """Gives up rights that the engine does not need. If the host becomes another user, binds the socket
    before that and returns it, because the other user may not create files in the runtime directory. Raises
    SettingsError."""
    if config.user is None:
        confine(open_files=open_files)
        return None
    sock = bind_private(config.socket)
    library_paths = [path for path in (config.load.library, config.load.mmproj) if path]
    required_paths: list[str | os.PathLike[str]] = [
        Path(__file__).parent,
        Path(os.__file__).parent,
        config.load.model,
        *library_paths,
    ]
    confine(config.user, required_paths, open_files)
    return sock


async def _serve(
    config: HostConfig,
    create: Callable[[], TokenEngine],
    status: StatusPipe,
    sock: socket.socket | None,
    orders: HostOrders,
) -> int:
    """Loads the model, serves calls until stopped, and frees the model. Returns the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(record_loop_failure)
    loop.add_signal_handler(signal.SIGTERM, lambda: os._exit(0))  # nothing to drain while loading
    status.report_loading()
    try:
        engine = create()
        info = await engine.load(config.load)
    except AntiphonError as error:
        status.report_failure(error)
        return 1
    except Exception as problem:  # noqa: BLE001 - a defect of an engine becomes a report
        LOGGER.exception("engine_load_failed")
        status.report_failure(
            LoadError(f"the engine of {config.name} cannot start: {type(problem).__name__}: {problem}")
        )
        return 1
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if isinstance(engine, EncodingEngine):
        engine.watch_encodes(status.report_encode)
        for medium in config.refused:
            engine.refuse_medium(medium)
    async with serve_engine(engine, config.socket, sock=sock) as host:
        if isinstance(engine, RemoteEngine):
            engine.watch_absence(host.note_absence)
        faulthandler.enable()  # from here on, a crash of the library prints a traceback
        try:
            async with unload_idle(IdleUnloading(host, status, stop, config.keep_alive), orders):
                status.report_ready(info)  # the supervisor's orders arrive from here on
                record(
                    "engine_ready", logging.DEBUG, model=config.name, library=info.library, pid=os.getpid()
                )
                await status.report_alive_until(stop, engine.info)
        except AntiphonError as error:
            record("engine_lost", logging.ERROR, model=config.name, error=error.message)
            return ENGINE_LOST
        await host.drain(DRAIN_SECONDS)
    await engine.aclose()
    return 0


def _exit_orphaned(path: str) -> None:
    """Removes the socket, and its directory if it was the last one there. Ends the process at once, without
    waiting for the engine."""
    with suppress(OSError):
        remove_socket(path)
        remove_unused_directory(Path(path).parent)
    os._exit(ORPHANED)


if __name__ == "__main__":
    main()
