"""The processes of Ray Serve that run replicas."""

import psutil


def find_replicas(application: str) -> list[int]:
    """The processes of an application's replicas."""
    begin = f"ray::ServeReplica:{application}:"
    return [each.pid for each in psutil.process_iter() if begin in " ".join(named(each))]


def named(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
