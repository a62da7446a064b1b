"""How long the files of deploy/ wait for a server that they stop."""

import re

from tests.support.docs import ROOT

DEPLOY = ROOT / "deploy"


def read_seconds(name: str, pattern: str) -> int:
    (seconds,) = re.findall(pattern, (DEPLOY / name).read_text("utf-8"), re.MULTILINE)
    return int(seconds)


def read_graces() -> dict[str, int]:
    """The seconds between SIGTERM and SIGKILL. In Kubernetes they begin when preStop does."""
    pod = "kubernetes/statefulset.yaml"
    grace = read_seconds(pod, r"^ +terminationGracePeriodSeconds: (\d+)\b")
    return {
        "systemd": read_seconds("systemd/antiphon.service", r"^TimeoutStopSec=(\d+)$"),
        "compose": read_seconds("compose.yaml", r"^ +stop_grace_period: (\d+)s\b"),
        "kubernetes": grace - read_seconds(pod, r'exec: \{command: \[sleep, "(\d+)"\]\}'),
    }
