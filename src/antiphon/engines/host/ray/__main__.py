"""The Ray driver of one model: an engine host whose engine computes on the replicas. The supervisor runs it
as `python -m antiphon.engines.host.ray`, with a `HostConfig` and a `DriverConfig` on its standard input.

Ray ends a driver's process when the node of this machine ends. So the driver is a process of its own, which
the supervisor starts again.
"""

import sys

from antiphon.engines.host.__main__ import run_host
from antiphon.engines.host.control import HostConfig, Lifeline
from antiphon.engines.host.ray.config import DriverConfig
from antiphon.engines.host.ray.engine import RayTokenEngine
from antiphon.processes.ipc import FrameError, from_line

OPEN_FILES = 8192
"""The most open descriptors. The driver needs some for each replica and each process of the cluster."""


def main() -> None:
    """Runs the process."""
    lifeline = Lifeline()
    try:
        config = from_line(lifeline.read_line(), HostConfig)
        driver = from_line(lifeline.read_line(), DriverConfig)
    except (EOFError, FrameError) as problem:
        sys.exit(f"a driver is started by the supervisor, with its configuration on stdin: {problem}")
    run_host(lifeline, config, lambda: RayTokenEngine(driver), OPEN_FILES)


if __name__ == "__main__":
    main()
