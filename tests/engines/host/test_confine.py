"""What an engine host cannot do: looked at from outside, on the running process."""

import os
import resource
import signal
import sys
from pathlib import Path

import psutil
import pytest

from antiphon.engines.base import LoadSpec
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.confine import OOM_SCORE_INCREASE, OPEN_FILES, find_other_user
from antiphon.engines.host.control import ChildState
from antiphon.errors import SettingsError
from tests.support.host_engines import build_request
from tests.support.host_link import short_directory
from tests.support.host_process import AS_ROOT, REACHABLE, Started, gone, speaking, started
from tests.support.waiting import wait_until

NOBODY = "nobody"


@pytest.fixture
def anyio_backend() -> str:
    """The supervisor's loop is the standard library's."""
    return "asyncio"


def status(pid: int) -> dict[str, str]:
    """The kernel's own page about a process."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def ready(host: Started) -> None:
    host.says(ChildState.LOADING)
    host.says(ChildState.READY)


def test_a_host_has_limits_and_no_new_privileges() -> None:
    with started("create_brief_engine") as host:
        ready(host)
        seen = psutil.Process(host.process.pid)
        assert seen.rlimit(psutil.RLIMIT_CORE) == (0, 0)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        assert seen.rlimit(psutil.RLIMIT_NOFILE) == (most, most)
        assert seen.num_fds() < 20
        if sys.platform == "linux":
            assert {status(thread.id)["NoNewPrivs"] for thread in seen.threads()} == {"1"}
            score = Path(f"/proc/{seen.pid}/oom_score_adj").read_text("ascii")
            assert int(score) >= OOM_SCORE_INCREASE > int(Path("/proc/self/oom_score_adj").read_text("ascii"))


async def test_a_child_inherits_no_descriptor_but_those_it_is_given(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a key")
    with secret.open() as opened:
        os.set_inheritable(opened.fileno(), True)
        async with speaking("r_") as child:
            assert (await anext(child.read_reports(5.0))).state is ChildState.READY
            assert str(secret) not in [file.path for file in psutil.Process(child.pid).open_files()]


def test_only_root_may_name_another_existing_user() -> None:
    own = psutil.Process().username()
    assert find_other_user(own) is None, "nothing to change"
    with pytest.raises(SettingsError, match="there is no user 'nobody-of-that-name'"):
        find_other_user("nobody-of-that-name")
    if AS_ROOT:
        assert find_other_user(NOBODY) is not None
    else:
        with pytest.raises(SettingsError, match="only root can run engines as root"):
            find_other_user("root")


async def test_a_host_takes_the_rights_of_its_user_and_still_serves() -> None:
    with short_directory() as place:
        place.chmod(0o755)
        model = place / "model"
        model.write_bytes(b"weights")
        model.chmod(0o644)
        with started("create_brief_engine", user=NOBODY, load=LoadSpec(str(model))) as host:
            host.says(ChildState.LOADING if AS_ROOT and REACHABLE else ChildState.FAILED)
            if not (AS_ROOT and REACHABLE):
                return
            host.says(ChildState.READY)
            seen = psutil.Process(host.process.pid)
            uids, kernel = seen.uids(), status(seen.pid)
            assert seen.username() == NOBODY and len(set(uids)) == 1 and 0 not in uids
            assert int(kernel["CapEff"], 16) == int(kernel["CapPrm"], 16) == 0
            assert kernel["NoNewPrivs"] == "1" and "0" not in kernel["Groups"].split()
            assert host.socket.stat().st_mode & 0o777 == 0o600, "nobody else may connect"
            async with open_host_engine(str(host.socket), "cantor") as client:
                await client.load(LoadSpec(""))
                assert [event async for event in client.generate(build_request())]
            host.process.send_signal(signal.SIGTERM)
            assert gone(host) == 0


def test_what_its_user_cannot_read_is_named() -> None:
    with short_directory() as place:
        model = place / "model"
        model.write_bytes(b"weights")
        model.chmod(0o600)
        with started("create_brief_engine", user=NOBODY, load=LoadSpec(str(model))) as host:
            error = host.says(ChildState.FAILED).error
            assert error is not None and isinstance(error.to_exception(), SettingsError)
            assert "ANTIPHON_ENGINE_USER" in error.message
            if AS_ROOT and REACHABLE:
                assert error.message.startswith(f"the user nobody cannot read {model};")
            assert gone(host) == 1
            wait_until(lambda: not psutil.pid_exists(host.process.pid), what="the host is gone")
