"""Adapters on all hosts of one model."""

import pytest

from antiphon.engines.base import EngineState
from antiphon.engines.host.client import HostGroup
from antiphon.errors import DeadlineExceeded, EngineUnavailable


class Host:
    """One host, as far as a group uses it."""

    def __init__(self, state: EngineState = EngineState.READY) -> None:
        self.adapters: dict[str, str] = {}
        self.refused: list[str] = []
        self.standing = state

    def state(self) -> EngineState:
        return self.standing

    def require_connection(self) -> None:
        if self.standing is not EngineState.READY:
            raise EngineUnavailable(f"it is {self.standing}")

    async def add_adapter(self, digest: str, path: str) -> None:
        self.require_connection()
        self.adapters[digest] = path

    async def remove_adapter(self, digest: str) -> None:
        self.adapters.pop(digest, None)
        self.require_connection()

    def note_adapters(self, paths: dict[str, str]) -> None:
        self.adapters = dict(paths)

    def note_refused(self, digest: str, _: str) -> None:
        self.refused.append(digest)


def build(*hosts: Host) -> HostGroup:
    return HostGroup(hosts)  # type: ignore[arg-type]


async def test_all_hosts_get_an_adapter_and_lose_it():
    hosts = Host(), Host()
    group = build(*hosts)
    await group.add_adapter("d", "/d")
    assert [host.adapters for host in hosts] == [{"d": "/d"}] * 2
    await group.remove_adapter("d")
    assert [host.adapters for host in hosts] == [{}] * 2
    group.note_adapters({"e": "/e"})
    group.note_refused("e", "why")
    assert [(host.adapters, host.refused) for host in hosts] == [({"e": "/e"}, ["e"])] * 2


async def test_no_host_gets_an_adapter_while_one_is_away():
    hosts = Host(), Host(EngineState.RESTARTING)
    with pytest.raises(EngineUnavailable, match="restarting"):
        await build(*hosts).add_adapter("d", "/d")
    assert [host.adapters for host in hosts] == [{}, {}]


async def test_a_host_that_was_given_up_holds_up_no_adapter():
    hosts = Host(), Host(EngineState.FAILED)
    await build(*hosts).add_adapter("d", "/d")
    assert hosts[0].adapters == {"d": "/d"}
    with pytest.raises(EngineUnavailable, match="failed"):
        await build(hosts[1]).add_adapter("d", "/d")


async def test_a_host_that_is_away_still_loses_an_adapter():
    hosts = Host(EngineState.RESTARTING), Host()
    for host in hosts:
        host.adapters = {"d": "/d"}
    await build(*hosts).remove_adapter("d")
    assert [host.adapters for host in hosts] == [{}, {}]


async def test_other_hosts_lose_an_adapter_when_one_is_late():
    class Late(Host):
        async def remove_adapter(self, digest: str) -> None:
            raise DeadlineExceeded("no answer in time")

    hosts = Late(), Host()
    hosts[1].adapters = {"d": "/d"}
    with pytest.raises(DeadlineExceeded):
        await build(*hosts).remove_adapter("d")
    assert hosts[1].adapters == {}
