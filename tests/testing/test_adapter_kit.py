"""The kit of adapters accepts the scripted engine, also behind a socket, and finds each broken rule."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from antiphon.domain.values import replace
from antiphon.engines.base import TokenEvent, TokenRequest
from antiphon_testing import ScriptedTokenEngine, check_adapters, scripted_info
from tests.support.host_link import open_link


@pytest.fixture
def adapters(tmp_path: Path) -> dict[str, str]:
    """Two files by digest."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    return {name: str(tmp_path / name) for name in ("one", "two")}


def scripted(kind: type[ScriptedTokenEngine] = ScriptedTokenEngine) -> ScriptedTokenEngine:
    return kind(info=scripted_info(context_length=256, sequences=4))


async def test_the_scripted_engine_keeps_the_contract(adapters: dict[str, str]) -> None:
    await check_adapters(scripted(), adapters)


async def test_it_is_kept_behind_a_socket_too(adapters: dict[str, str]) -> None:
    async with open_link(scripted()) as link:
        await check_adapters(link.client, adapters)


class Deaf(ScriptedTokenEngine):
    """Lets the base model answer for whatever is named."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        async for event in super().generate(replace(request, adapter=None)):
            yield event


class Mixed(ScriptedTokenEngine):
    """Answers with the adapter that was asked for first."""

    first: str | None = None

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        if request.adapter in self.known and not request.cache_salt:
            self.first = self.first or request.adapter
            request = replace(request, adapter=self.first)
        async for event in super().generate(request):
            yield event

    @property
    def known(self) -> set[str | None]:
        return {*self.paths}

    def __init__(self, **more: object) -> None:
        super().__init__(**more)  # type: ignore[arg-type]
        self.paths: dict[str, str] = {}

    async def add_adapter(self, digest: str, path: str) -> None:
        await super().add_adapter(digest, path)
        self.paths[digest] = path

    async def remove_adapter(self, digest: str) -> None:
        await super().remove_adapter(digest)
        self.paths.pop(digest, None)


class Clinging(ScriptedTokenEngine):
    """Never lets go of an adapter."""

    async def remove_adapter(self, digest: str) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Deaf, "that was not added is refused"),
        (Mixed, "never used for another adapter"),
        (Clinging, "that was not added is refused"),
    ],
)
async def test_each_broken_rule_is_found(
    kind: type[ScriptedTokenEngine], rule: str, adapters: dict[str, str]
) -> None:
    with pytest.raises(AssertionError, match=rule):
        await check_adapters(scripted(kind), adapters)
