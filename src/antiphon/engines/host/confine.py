"""The rights that an engine host gives up before it opens a model, so that a faulty library can do little
harm.

On every system it writes no core dump, since memory contains weights and prompts, and it may open few files.
On Linux it gains no new privileges by executing a program, and when memory runs out, the kernel kills it
before the HTTP process. If root starts it and a user is configured, it keeps only that user's rights.

It does not limit the address space, since weights are mapped into it. It does not limit the number of
processes, since the kernel counts them for each user. It closes no descriptors: a child inherits only the
ones that the supervisor passes.
"""

import os
import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from pwd import struct_passwd

OPEN_FILES = 512
"""The most open descriptors. A model in a hundred files, some devices, and the sockets need half of them."""

OOM_SCORE_INCREASE = 500
"""The number to which a host's adjustment of its out-of-memory score is raised, in thousandths of the
memory."""

OOM_SCORE_FILE = Path("/proc/self/oom_score_adj")
PR_SET_NO_NEW_PRIVS = 38


def confine(
    user: str | None = None,
    required_paths: Iterable[str | os.PathLike[str]] = (),
    open_files: int = OPEN_FILES,
) -> None:
    """Gives up rights permanently. Call it before a second thread starts.

    Raises SettingsError if the process cannot become that user, or if that user cannot read a required path.
    """
    _raise_oom_score()
    _lower_limit(resource.RLIMIT_CORE, 0)
    _lower_limit(resource.RLIMIT_NOFILE, open_files)
    if user is not None and (entry := find_other_user(user)) is not None:
        _become_user(entry)
        _require_readable(entry.pw_name, required_paths)
    _renounce_privileges()


def find_other_user(name: str) -> "struct_passwd | None":
    """Returns the user whose rights this process must take; None if the process already is that user.

    Raises SettingsError if there is no such user, or if this process is not allowed to become that user.
    """
    import pwd

    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise SettingsError(
            f"there is no user {name!r} on this system; make it, or leave ANTIPHON_ENGINE_USER out"
        ) from None
    if entry.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise SettingsError(
            f"only root can run engines as {name}; start the server as root, or leave "
            "ANTIPHON_ENGINE_USER out"
        )
    return entry


def _become_user(entry: "struct_passwd") -> None:
    """Takes the user's rights. It sets the groups first, because an ordinary user may not change them."""
    try:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except PermissionError:
        raise SettingsError(
            f"this system does not let root become {entry.pw_name}; grant the container CAP_SETUID and "
            "CAP_SETGID, or leave ANTIPHON_ENGINE_USER out"
        ) from None
    os.environ["HOME"] = entry.pw_dir


def _require_readable(name: str, paths: Iterable[str | os.PathLike[str]]) -> None:
    """Raises SettingsError if this process cannot read one of the needed paths."""
    for path in paths:
        if not os.access(path, os.R_OK):
            raise SettingsError(
                f"the user {name} cannot read {os.fspath(path)}; grant access to it and to the "
                "directories above, or leave ANTIPHON_ENGINE_USER out"
            )


def _lower_limit(kind: int, limit: int) -> None:
    """Lowers a limit; keeps a limit that is already lower."""
    _, hard_limit = resource.getrlimit(kind)
    new_limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
    resource.setrlimit(kind, (new_limit, new_limit))


def _raise_oom_score() -> None:
    """Raises the process's out-of-memory score, which every user may do. Does nothing on systems without such
    a score."""
    with suppress(OSError, ValueError):
        if int(OOM_SCORE_FILE.read_text("ascii")) < OOM_SCORE_INCREASE:
            OOM_SCORE_FILE.write_text(str(OOM_SCORE_INCREASE), "ascii")


def _renounce_privileges() -> None:
    """Prevents programs that are executed later from gaining rights by their owner or capabilities."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
