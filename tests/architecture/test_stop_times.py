"""Who stops a server waits until its last answers have ended: the files of deploy/, and the commands of the
pages."""

import re

import pytest

from antiphon.processes.reload import HOST_DEADLINE
from antiphon.processes.workers import MARGIN
from antiphon.settings.server import ServerSettings
from tests.support.docs import PAGES
from tests.support.graces import DEPLOY, read_graces

STOP_SECONDS = ServerSettings().drain_delay + ServerSettings().drain_timeout + MARGIN + HOST_DEADLINE
"""The most seconds from the signal to the end of the last process."""

DOCKER_RUN = re.compile(r"^docker (?:run --detach|stop) .*$", re.MULTILINE)


@pytest.mark.parametrize("manager", ["systemd", "compose", "kubernetes"])
def test_every_grace_is_longer_than_a_stop(manager: str) -> None:
    assert read_graces()[manager] >= STOP_SECONDS >= 35


def test_no_file_of_deploy_has_another_drain_timeout() -> None:
    """Otherwise the graces would have to fit that one."""
    setting = re.compile(r"(?m)^[^#\n]*\b(?:ANTIPHON_DRAIN_\w+|drain_(?:timeout|delay))\b *[:=]")
    files = [path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "ray"]
    assert [path.name for path in files if setting.search(path.read_text("utf-8"))] == []


def test_the_commands_for_docker_give_the_same_grace() -> None:
    """Docker's own is 10 s."""
    commands = [each for page in PAGES for each in DOCKER_RUN.findall(page.read_text("utf-8"))]
    assert len(commands) >= 2
    for command in commands:
        found = re.search(r"--(?:stop-timeout|time) (\d+)", command)
        assert found is not None and int(found[1]) >= STOP_SECONDS, command
