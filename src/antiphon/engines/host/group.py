"""The engine hosts of one model, as far as adapters are concerned: what one of them has, all have."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from antiphon.engines.base import EngineState
from antiphon.engines.host.client import HostTokenEngine
from antiphon.errors import EngineUnavailable


class HostGroup:
    """An `AdapterEngine` over all hosts of a model. A host that was given up does not count, since it serves
    nothing any more."""

    def __init__(self, hosts: Sequence[HostTokenEngine]) -> None:
        """`hosts`: at least one."""
        self._hosts = tuple(hosts)

    async def add_adapter(self, digest: str, path: str) -> None:
        """Makes an adapter usable on every host. Raises EngineUnavailable, and asks none, while one of them
        is away."""
        hosts = [host for host in self._hosts if host.state() is not EngineState.FAILED] or self._hosts
        for host in hosts:
            host.require_connection()
        for host in hosts:
            await host.add_adapter(digest, path)

    async def remove_adapter(self, digest: str) -> None:
        """Refuses the adapter to new sequences on every host. A host that is away will not get it again."""
        for host in self._hosts:
            with suppress(EngineUnavailable):
                await host.remove_adapter(digest)

    def note_adapters(self, paths: Mapping[str, str]) -> None:
        """Notes the adapters of all hosts, by digest."""
        for host in self._hosts:
            host.note_adapters(paths)

    def note_refused(self, digest: str, reason: str) -> None:
        """Notes that the hosts refuse an adapter that they should have."""
        for host in self._hosts:
            host.note_refused(digest, reason)
