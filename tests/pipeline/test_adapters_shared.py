"""Adapters of several HTTP processes: the same names, and each process with its own models and its own
stand-in of the engine."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.models import Adapter, AdapterOrigin, DeployedAdapter
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import EngineError, InvalidValue, ModelNotFound
from antiphon.pipeline.adapters import AdapterRegistry, AdapterRequest, AdapterTarget
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import FakeClock, ScriptedEngine


@dataclass
class Host:
    """The one engine of all processes, as far as adapters are concerned."""

    paths: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Files that it cannot read."""

    async def add_adapter(self, digest: str, path: str) -> None:
        if path in self.gone:
            raise InvalidValue("its file is gone", param="adapter")
        self.paths[digest] = path

    async def remove_adapter(self, digest: str) -> None:
        self.paths.pop(digest, None)


@dataclass
class Shared:
    """The names of all processes, each of which learns them at once."""

    revision: int = 0
    names: bytes = b""
    followers: list[Callable[[bytes], None]] = field(default_factory=list)
    is_away: bool = False
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """What another process does just before the next change."""

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        if self.is_away:
            raise EngineError("the adapters cannot be changed")
        if self.meanwhile is not None:
            other, self.meanwhile = self.meanwhile, None
            await other()
        if revision != self.revision:
            return False
        self.revision, self.names = revision + 1, names
        for follower in self.followers:
            follower(names)
        return True


@dataclass
class Process:
    """What one HTTP process has of it."""

    models: ModelRegistry
    adapters: AdapterRegistry
    noted: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        return [model.name for model in self.models.list_adapters()]


async def keep(path: str, _: Path | None) -> Adapter:
    return Adapter(path * 8, f"/kept/{path}", 4, 8.0, 100)


def process(shared: Shared, engine: Host, *declared: str) -> Process:
    models = ModelRegistry((Model("base", (ModelRoute(ScriptedEngine()),), 1),))
    noted: dict[str, str] = {}

    def note(paths: object) -> None:
        noted.clear()
        noted.update(paths)  # type: ignore[call-overload]

    lost: dict[str, str] = {}
    home = AdapterTarget(engine, keep, lambda _: (ScriptedEngine(),), note, lost.__setitem__)
    adapters = AdapterRegistry(models, {"base": home}, FakeClock(), Metrics(), shared)
    for name in declared:
        adapters.declare(name, "base", Adapter(name * 8, f"/kept/{name}", 4, 8.0, 100))
    shared.followers.append(adapters.update_names)
    if shared.revision:
        adapters.update_names(shared.names)
    return Process(models, adapters, noted, lost)


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def engine() -> Host:
    return Host()


async def test_what_one_changes_the_others_have_at_once(shared: Shared, engine) -> None:
    one, other = (process(shared, engine, "own") for _ in range(2))
    await one.adapters.load(AdapterRequest("new", "aa"))
    assert other.names() == one.names() == ["own", "new"]
    assert other.noted["aa" * 8] == "/kept/aa", "its stand-in tells an engine that comes back"
    assert other.models.get("new").adapter == one.models.get("new").adapter
    await other.adapters.load(AdapterRequest("new", "bb", in_place=True))
    assert one.models.get("new").adapter == await keep("bb", None)
    await one.adapters.unload("own")
    assert "own" not in other.models
    with pytest.raises(ModelNotFound):
        await other.adapters.unload("own")
    assert process(shared, engine, "own").names() == ["new"], "one that starts later goes on from there"


async def test_a_name_that_another_process_gave_is_not_given_again(shared: Shared, engine) -> None:
    one, other = process(shared, engine), process(shared, engine)
    await one.adapters.load(AdapterRequest("new", "aa"))
    with pytest.raises(InvalidValue, match="loaded already, with other content"):
        await other.adapters.load(AdapterRequest("new", "bb"))
    assert one.models.get("new").adapter == await keep("aa", None)


async def test_a_change_that_came_second_builds_on_the_first(shared, engine) -> None:
    one, other = process(shared, engine), process(shared, engine)
    shared.meanwhile = lambda: other.adapters.load(AdapterRequest("first", "aa"))
    await one.adapters.load(AdapterRequest("second", "bb"))
    assert one.names() == other.names() == ["first", "second"]
    shared.meanwhile = lambda: other.adapters.unload("second")
    with pytest.raises(ModelNotFound):
        await one.adapters.unload("second")
    shared.meanwhile = lambda: other.adapters.load(AdapterRequest("third", "cc"))
    with pytest.raises(InvalidValue, match="with other content"):
        await one.adapters.load(AdapterRequest("third", "dd"))
    assert one.names() == other.names() == ["first", "third"]


async def test_who_deployed_what_is_known_everywhere(shared: Shared, engine) -> None:
    one, other = process(shared, engine), process(shared, engine)

    def deployed(base: str) -> DeployedAdapter:
        return DeployedAdapter("new", base, "ada/lora", AdapterOrigin.HUB, 7, "c0ffee", LOCAL_ANONYMOUS)

    await one.adapters.load(AdapterRequest("new", "aa", build_record=deployed))
    assert other.models.get("new").deployed == deployed("base")
    assert other.models.get("new").created == one.models.get("new").created


@pytest.mark.parametrize("declared", [(), ("own",)])
async def test_where_the_others_cannot_be_told_nothing_has_changed(
    shared: Shared, engine, declared: tuple[str, ...]
) -> None:
    one, other = process(shared, engine, *declared), process(shared, engine, *declared)
    await one.adapters.load(AdapterRequest("new", "aa"))
    shared.is_away = True
    for change in (one.adapters.load(AdapterRequest("more", "bb")), one.adapters.unload("new")):
        with pytest.raises(EngineError, match="cannot be changed"):
            await change
        assert one.names() == other.names() == [*declared, "new"]
    shared.is_away = False
    await other.adapters.load(AdapterRequest("more", "bb"))
    assert one.names() == [*declared, "new", "more"]


async def test_adapters_of_the_settings_stay_without_a_coordinator(shared: Shared, engine) -> None:
    one = process(shared, engine, "own")
    shared.is_away = True
    for change in (one.adapters.load(AdapterRequest("more", "bb")), one.adapters.unload("own")):
        with pytest.raises(EngineError, match="cannot be changed"):
            await change
        assert one.names() == ["own"]
    shared.is_away = False
    await one.adapters.load(AdapterRequest("more", "bb"))
    assert one.names() == ["own", "more"]


async def test_a_later_process_starts_despite_a_refused_adapter(shared: Shared, engine) -> None:
    engine.gone.add("/kept/own")
    first = process(shared, engine, "own", "other")
    with pytest.raises(InvalidValue, match="own cannot be served"):
        await first.adapters.restore("base")
    engine.gone.clear()
    await first.adapters.restore("base")
    await first.adapters.publish_settings()
    engine.gone.add("/kept/own")
    engine.paths.clear()
    later = process(shared, engine, "own", "other")
    await later.adapters.restore("base")
    assert later.lost == {"own" * 8: "its file is gone"} and "own" in later.names()
    assert engine.paths == {"other" * 8: "/kept/other"}, "the others are served"
