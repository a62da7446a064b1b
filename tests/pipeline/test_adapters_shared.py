"""Adapters of several HTTP processes: one board, and each process with its own models and its own stand-in of
the engine."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from antiphon.domain.adapter import Adapter
from antiphon.domain.deployment import Deployed, Source
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.engines.registry import Model, ModelRoute, Models
from antiphon.errors import EngineError, InvalidValue, ModelNotFound
from antiphon.ipc.board import Board
from antiphon.pipeline.adapters import Adapters, Home, Wanted
from antiphon.telemetry.metrics import Metrics
from antiphon.testing import FakeClock, ScriptedEngine


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
class Process:
    """What one HTTP process has of it."""

    models: Models
    adapters: Adapters
    noted: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        return [model.name for model in self.models.adapters()]


async def keep(path: str, _: Path | None) -> Adapter:
    return Adapter(path * 8, f"/kept/{path}", 4, 8.0, 100)


def process(directory: Path, engine: Host, *declared: str) -> Process:
    models = Models((Model("base", (ModelRoute(ScriptedEngine()),), 1),))
    noted: dict[str, str] = {}

    def note(paths: object) -> None:
        noted.clear()
        noted.update(paths)  # type: ignore[call-overload]

    lost: dict[str, str] = {}
    home = Home(engine, keep, lambda _: ScriptedEngine(), note, lost.__setitem__)
    adapters = Adapters(models, {"base": home}, FakeClock(), Metrics(), Board(directory, "names"))
    for name in declared:
        adapters.declare(name, "base", Adapter(name * 8, f"/kept/{name}", 4, 8.0, 100))
    models.follow(adapters.sync)
    return Process(models, adapters, noted, lost)


@pytest.fixture
def engine() -> Host:
    return Host()


async def test_what_one_changes_the_others_have_at_the_next_look(tmp_path: Path, engine) -> None:
    one, other = (process(tmp_path, engine, "own") for _ in range(2))
    await one.adapters.load(Wanted("new", "aa"))
    assert other.names() == one.names() == ["own", "new"]
    assert other.noted["aa" * 8] == "/kept/aa", "its stand-in tells an engine that comes back"
    assert other.models.get("new").adapter == one.models.get("new").adapter
    await other.adapters.load(Wanted("new", "bb", in_place=True))
    assert one.models.get("new").adapter == await keep("bb", None)
    await one.adapters.unload("own")
    assert "own" not in other.models
    with pytest.raises(ModelNotFound):
        await other.adapters.unload("own")
    assert process(tmp_path, engine, "own").names() == ["new"], "one that starts later goes on from there"


async def test_a_name_that_another_process_gave_is_not_given_again(tmp_path: Path, engine) -> None:
    one, other = process(tmp_path, engine), process(tmp_path, engine)
    await one.adapters.load(Wanted("new", "aa"))
    with pytest.raises(InvalidValue, match="loaded already, with other content"):
        await other.adapters.load(Wanted("new", "bb"))
    assert one.models.get("new").adapter == await keep("aa", None)


async def test_who_deployed_what_is_known_everywhere(tmp_path: Path, engine) -> None:
    one, other = process(tmp_path, engine), process(tmp_path, engine)

    def deployed(base: str) -> Deployed:
        return Deployed("new", base, "ada/lora", Source.HUB, 7, "c0ffee", LOCAL_ANONYMOUS)

    await one.adapters.load(Wanted("new", "aa", deployed=deployed))
    assert other.models.get("new").deployed == deployed("base")
    assert other.models.get("new").created == one.models.get("new").created


@pytest.mark.parametrize("declared", [(), ("own",)])
async def test_where_the_others_cannot_be_told_nothing_has_changed(
    tmp_path: Path, engine, declared: tuple[str, ...]
) -> None:
    one, other = process(tmp_path, engine, *declared), process(tmp_path, engine, *declared)
    await one.adapters.load(Wanted("new", "aa"))
    blocking = tmp_path / "names.new"
    blocking.mkdir()  # as a full disk would, it lets nothing be written
    for change in (one.adapters.load(Wanted("more", "bb")), one.adapters.unload("new")):
        with pytest.raises(EngineError, match="cannot be changed"):
            await change
        assert one.names() == other.names() == [*declared, "new"]
    blocking.rmdir()
    await other.adapters.load(Wanted("more", "bb"))
    assert one.names() == [*declared, "new", "more"]


async def test_where_the_others_could_never_be_told_anything_the_adapters_of_the_settings_stay(
    tmp_path: Path, engine
) -> None:
    one = process(tmp_path, engine, "own")
    blocking = tmp_path / "names.new"
    blocking.mkdir()
    for change in (one.adapters.load(Wanted("more", "bb")), one.adapters.unload("own")):
        with pytest.raises(EngineError, match="cannot be changed"):
            await change
        assert one.names() == ["own"]
    blocking.rmdir()
    await one.adapters.load(Wanted("more", "bb"))
    assert one.names() == ["own", "more"]


async def test_a_process_that_starts_in_a_server_that_serves_is_not_refused_for_an_adapter(
    tmp_path: Path, engine
) -> None:
    engine.gone.add("/kept/own")
    first = process(tmp_path, engine, "own", "other")
    with pytest.raises(InvalidValue, match="own cannot be served"):
        await first.adapters.restore("base")
    engine.gone.clear()
    await first.adapters.restore("base")
    await first.adapters.settle()
    engine.gone.add("/kept/own")
    engine.paths.clear()
    later = process(tmp_path, engine, "own", "other")
    await later.adapters.restore("base")
    assert later.lost == {"own" * 8: "its file is gone"} and "own" in later.names()
    assert engine.paths == {"other" * 8: "/kept/other"}, "the others are served"
