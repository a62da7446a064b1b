"""The machine: the number of compute threads, and the environment variables that native code reads when it is
loaded.
"""

import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")

CONTROL_GROUP = Path("/sys/fs/cgroup")

WAIT_POLICY, PASSIVE = "OMP_WAIT_POLICY", "passive"

SHORT_SPIN = {
    # These variables make threads sleep while they wait at a barrier. If other programs use the machine,
    # spinning as long as OpenMP does by default costs several times more. GNU's OpenMP spins for some
    # microseconds before it sleeps: on an idle machine, sleeping at once would cost about half of a small
    # model's speed.
    WAIT_POLICY: PASSIVE,
    "GOMP_SPINCOUNT": "1000",
}

BOUND_THREADS = {
    # Each thread of OpenMP stays on a core of its own. Linux likes to wake a thread on the core of the thread
    # that wakes it. Then two threads that wait for each other at every barrier take turns on one core, often
    # for hundreds of steps, and a step of a small model takes up to eight times as long.
    "OMP_PROC_BIND": "true",
    "OMP_PLACES": "cores",
}
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""The variables with which an operator binds threads, or leaves them unbound."""

QUIET_END = {
    # At a failed assertion ggml starts a debugger to print a backtrace, which delays the restart by seconds.
    "GGML_NO_BACKTRACE": "1",
}


def prepare_environment(environment: MutableMapping[str, str] | None = None) -> None:
    """Sets the variables that native code reads once when it is loaded. It does not change variables that the
    operator has set."""
    target = os.environ if environment is None else environment
    is_passive = target.get(WAIT_POLICY, PASSIVE).lower() == PASSIVE
    for name, value in (QUIET_END | SHORT_SPIN if is_passive else QUIET_END).items():
        target.setdefault(name, value)


def choose_binding(
    environment: Mapping[str, str],
    threads: int | None,
    cpus: Path = CPUS,
    group: Path = CONTROL_GROUP,
    allowed: Iterable[int] | None = None,
) -> dict[str, str]:
    """Returns the variables that bind the threads of an engine which is alone on this machine. They are empty
    if its threads leave a core free, where other threads and programs can be, or if the operator has decided
    it in `environment`. `threads`: the number of threads; None means the number for this machine."""
    cores = count_cores(cpus, allowed)
    count = threads or choose_thread_count(cpus, group, allowed)
    is_decided = any(name in environment for name in BINDING_VARIABLES)
    return {} if cores < 2 or count < cores or is_decided else BOUND_THREADS


MAX_BOUND_ROWS = 8
"""The most rows of a decode for which bound threads stay bound. Beside other programs, 8 rows of a small
model are faster bound, and 32 rows take two thirds of the time unbound."""


class BoundThreads:
    """The compute threads that OpenMP has bound, each to a core. A bound thread cannot leave a core that
    another program uses, and the other compute threads wait for it. So the threads may move while they
    compute prompts or many rows, with long operations between two barriers. Only steps of few rows are
    faster bound."""

    def __init__(self) -> None:
        self._cores: dict[int, set[int]] = {}
        """The cores of each thread, by thread id, while the threads may move; otherwise empty."""

    def place(self, rows: int) -> None:
        """Lets the threads run on every core of the process for a decode of many rows. For one of few rows,
        each stays on its own core."""
        if rows <= MAX_BOUND_ROWS:
            cores, self._cores = self._cores, {}
            for thread, own_cores in cores.items():
                with suppress(OSError):  # the thread has ended, or may not use these cores any more
                    os.sched_setaffinity(thread, own_cores)
        elif not self._cores:
            usable = os.sched_getaffinity(os.getpid())  # of the main thread, which OpenMP does not bind
            for thread in map(int, os.listdir("/proc/self/task")):
                with suppress(OSError):
                    own_cores = os.sched_getaffinity(thread)
                    if own_cores < usable:
                        os.sched_setaffinity(thread, usable)
                        self._cores[thread] = own_cores


def count_cores(cpus: Path = CPUS, allowed: Iterable[int] | None = None) -> int:
    """The number of physical cores that this process may use, as its affinity allows."""
    return len({_read_core(cpus, cpu) for cpu in (list_usable_cpus() if allowed is None else allowed)})


def choose_thread_count(
    cpus: Path = CPUS, group: Path = CONTROL_GROUP, allowed: Iterable[int] | None = None
) -> int:
    """The number of physical cores that this process may use, as its affinity and the quota of its control
    group allow. At least 1."""
    return max(1, min(count_cores(cpus, allowed), _read_quota(group)))


def list_usable_cpus() -> list[int]:
    """The processors that this process may run on."""
    if sys.platform == "linux":
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _read_core(cpus: Path, cpu: int) -> tuple[str, str]:
    """The package and core of a processor. If the system does not tell them, the processor counts as a core
    of its own."""
    topology = cpus / f"cpu{cpu}" / "topology"
    try:
        return (topology / "physical_package_id").read_text().strip(), (
            topology / "core_id"
        ).read_text().strip()
    except OSError:
        return "", str(cpu)


def _read_quota(group: Path) -> int:
    """The number of processors that the control group grants, rounded up; a large number if there is no
    limit."""
    unlimited = 1 << 16
    try:
        quota, _, period = (group / "cpu.max").read_text().partition(" ")
        if quota != "max":
            return -(-int(quota) // int(period))
    except (OSError, ValueError):
        pass  # no control group of version 2
    try:
        quota_us = int((group / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((group / "cpu" / "cpu.cfs_period_us").read_text())
        return -(-quota_us // period_us) if quota_us > 0 else unlimited
    except (OSError, ValueError):
        return unlimited
