"""`python -m antiphon.processes.coordinator`: the coordinator's process, if there are several HTTP processes.

It opens no port. Its state is also in the ledger, the runtime directory and the HTTP processes, so the
supervisor can restart it after it died.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import uvloop

from antiphon.domain.context import SystemClock
from antiphon.engines.host.control import CoordinatorConfig, Lifeline, StatusPipe
from antiphon.engines.host.runtime import remove_unused_directory
from antiphon.errors import AntiphonError
from antiphon.processes.coordinator.coordinator import open_coordinator, open_database
from antiphon.processes.ipc import from_line
from antiphon.settings.schema import Settings, decode_settings
from antiphon.telemetry.logs import configure

ORPHANED = 3
"""The exit status of a coordinator whose supervisor has died."""


async def run(settings: Settings, config: CoordinatorConfig) -> None:
    """Runs the coordinator until SIGTERM."""
    status, stop = StatusPipe(config.status_fd), asyncio.Event()
    database, clock = open_database(settings), SystemClock()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    try:
        async with open_coordinator(settings, config.socket, clock, database) as coordinator:
            status.report_ready()
            await status.report_alive_until(stop)
            coordinator.save_snapshot()
    except AntiphonError as error:
        status.report_failure(error)
        sys.exit(1)


def _abandon(config: CoordinatorConfig) -> None:
    """Ends the process after its supervisor died. Everything that is not in the database yet stays in the
    spool."""
    remove_unused_directory(Path(config.socket).parent)
    os._exit(ORPHANED)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles a terminal's Ctrl-C
    lifeline = Lifeline()
    try:
        settings = decode_settings(lifeline.read_line())
        config = from_line(lifeline.read_line(), CoordinatorConfig)
    except EOFError:
        sys.exit(1)
    configure(settings.log.level, settings.log.format)
    lifeline.watch(on_line=lambda _: None, on_end=lambda: _abandon(config))
    uvloop.run(run(settings, config))


if __name__ == "__main__":
    main()
