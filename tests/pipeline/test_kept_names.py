"""Names of adapters that last over a restart: what is kept, what is given again, and what is refused."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.models import Adapter, AdapterName, KeptName, NameChange
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import EngineError, InvalidValue, MissingParameter, ModelNotFound, PermissionDenied
from antiphon.pipeline.adapters import AdapterRegistry, AdapterRequest, AdapterTarget, ProjectQuota
from antiphon.processes.ipc import from_line
from antiphon.telemetry.logs import FIELDS
from antiphon.telemetry.metrics import Metrics
from antiphon.weights.adapter_store import KeptNamesFile, compute_fingerprint
from antiphon_testing import FakeClock, ScriptedEngine

QUOTA = ProjectQuota(adapters=2, total_bytes=250)


@dataclass
class Engine:
    """An engine, as far as adapters are concerned."""

    refused: set[str] = field(default_factory=set)

    async def add_adapter(self, digest: str, path: str) -> None:
        if digest in self.refused:
            raise InvalidValue("it does not fit", param="adapter")

    async def remove_adapter(self, digest: str) -> None: ...


@dataclass
class OneProcess:
    """The names of a server with one process, and the file that keeps them."""

    file: KeptNamesFile
    revision: int = 0
    follow: Callable[[bytes], None] = lambda _: None
    is_full: bool = False

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        if self.is_full:
            raise EngineError("the disk is full")
        self.revision += 1
        if change:
            self.file.apply(from_line(change, NameChange))
        self.follow(names)
        return True


@dataclass
class Started:
    """A server that was started on a registry."""

    models: ModelRegistry
    adapters: AdapterRegistry
    shared: OneProcess

    def names(self) -> list[str]:
        return [model.name for model in self.models.list_adapters()]

    async def load(self, name: str, digest: str, project: str | None = None) -> None:
        await self.adapters.load(AdapterRequest(name, digest, project=project, in_place=True))


def start(
    registry: Path, *, weights: str = "w", base: str = "base", quota: ProjectQuota = QUOTA, is_on: bool = True
) -> Started:
    async def keep(path: str, _: Path | None) -> Adapter:
        (registry / f"{path}.gguf").write_bytes(b"x" * 100)
        return Adapter(path, str(registry / f"{path}.gguf"), 4, 8.0, 100)

    registry.mkdir(exist_ok=True)
    models = ModelRegistry((Model(base, (ModelRoute(ScriptedEngine()),), 1),))
    target = AdapterTarget(Engine(), keep, lambda _: (ScriptedEngine(),), fingerprint=weights)
    file = KeptNamesFile(registry, is_on)
    shared = OneProcess(file)
    adapters = AdapterRegistry(models, {base: target}, FakeClock(), Metrics(), shared, file)
    adapters.quota = quota
    shared.follow = adapters.update_names
    adapters.restore_kept()
    return Started(models, adapters, shared)


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    found: list[Any] = [each for each in caplog.records if each.getMessage() == "adapter_not_restored"]
    return [each.__dict__[FIELDS]["reason"] for each in found]


async def test_a_name_is_given_again_with_its_project_and_place(tmp_path: Path) -> None:
    registry, moved = tmp_path / "registry", tmp_path / "moved"
    first = start(registry)
    await first.load("mine", "bb", project="p")
    await first.load("mine", "aa")
    registry.rename(moved)
    again = start(moved)
    found = again.models.list_adapters()
    assert [(model.name, model.project) for model in found] == [("mine", None), ("mine", "p")]
    assert found[0].adapter is not None and found[0].adapter.path == str(moved / "aa.gguf")
    assert [each.name for each in again.models] == ["base", "mine"]
    assert again.models.get("mine", project="p").project is None, "the operator's name comes first"
    await again.adapters.unload("mine")
    assert again.models.get("mine", project="p").project == "p"
    assert [(model.name, model.project) for model in start(moved).models.list_adapters()] == [("mine", "p")]


async def test_what_cannot_be_given_again_is_named_and_stays_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    first = start(tmp_path)
    await first.load("gone", "aa")
    await first.load("cut", "bb")
    await first.load("whole", "cc")
    (tmp_path / "aa.gguf").unlink()
    (tmp_path / "bb.gguf").write_bytes(b"x")
    second = start(tmp_path)
    assert second.names() == ["whole"]
    assert ["is not in the registry" in reasons(caplog)[0], "1 bytes instead" in reasons(caplog)[1]] == [
        True
    ] * 2
    await second.adapters.unload("gone")
    with pytest.raises(ModelNotFound):
        await second.adapters.unload("gone")
    assert [kept.entry.name for kept in KeptNamesFile(tmp_path).read()] == ["cut", "whole"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"weights": "v"}, "has changed since the adapter was loaded"),
        ({"base": "other"}, "the model base is not served"),
        ({"quota": ProjectQuota()}, "lora.project_adapters is 0"),
    ],
)
async def test_another_base_or_setting_gives_no_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: dict[str, Any], reason: str
) -> None:
    await start(tmp_path).load("mine", "aa", project="p")
    assert start(tmp_path, **changed).names() == []
    assert reason in reasons(caplog)[0]
    assert start(tmp_path).names() == ["mine"], "it is given again when all is as before"


async def test_an_engine_that_refuses_a_kept_adapter_still_starts(tmp_path: Path) -> None:
    await start(tmp_path).load("mine", "aa")
    again = start(tmp_path)
    engine = again.adapters._targets["base"].engine
    assert isinstance(engine, Engine)
    engine.refused.add("aa")
    await again.adapters.restore("base")
    assert again.names() == []


async def test_nothing_is_kept_where_the_setting_is_off(tmp_path: Path) -> None:
    await start(tmp_path, is_on=False).load("mine", "aa")
    assert start(tmp_path, is_on=False).names() == start(tmp_path).names() == []


async def test_a_damaged_file_is_set_aside_and_ends_no_start(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text("{")
    server = start(tmp_path)
    assert server.names() == []
    await server.load("mine", "aa")
    assert (tmp_path / "names.damaged").read_text() == "{"
    assert start(tmp_path).names() == ["mine"]


async def test_a_project_has_at_most_so_many_adapters_and_bytes(tmp_path: Path) -> None:
    server = start(tmp_path)
    await server.load("a", "aa", project="p")
    await server.load("b", "bb", project="p")
    with pytest.raises(PermissionDenied, match="has 2 adapters"):
        await server.load("c", "cc", project="p")
    assert not (tmp_path / "cc.gguf").exists(), "what was refused is not left behind"
    await server.load("b", "dd", project="p")
    assert not (tmp_path / "bb.gguf").exists(), "what was replaced is not left behind"
    await server.load("c", "cc", project="q")
    tight = start(tmp_path, quota=ProjectQuota(3, 250))
    with pytest.raises(PermissionDenied, match="300 bytes"):
        await tight.load("c", "cc", project="p")
    assert (tmp_path / "cc.gguf").exists(), "the other project has the same content"
    with pytest.raises(PermissionDenied, match="only the operator"):
        await start(tmp_path, quota=ProjectQuota()).load("d", "ee", project="p")


async def test_a_key_without_the_only_base_model_loads_nothing(tmp_path: Path) -> None:
    started = start(tmp_path)
    request = AdapterRequest("my-a", "aa", project="p", may_use=lambda name: name.startswith("my-"))
    with pytest.raises(MissingParameter, match="models that take adapters: none"):
        await started.adapters.load(request)
    assert started.names() == []


def test_other_weights_of_the_same_size_have_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    content = bytearray(3 << 20)
    path.write_bytes(content)
    before = compute_fingerprint(path)
    content[-1] = 1
    path.write_bytes(content)
    assert compute_fingerprint(path) != before and len(before) == 64
    assert compute_fingerprint(tmp_path / "absent") == ""


@pytest.mark.parametrize("names", [("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"), ("a.bin", "b.bin")])
def test_the_fingerprint_covers_all_files_of_a_model(tmp_path: Path, names: tuple[str, str]) -> None:
    first, second = (tmp_path / name for name in names)
    first.write_bytes(b"a")
    second.write_bytes(b"b")
    model = first if first.suffix == ".gguf" else tmp_path
    before = compute_fingerprint(model)
    second.write_bytes(b"c")
    assert compute_fingerprint(model) != before


def test_a_kept_name_survives_its_encoding(tmp_path: Path) -> None:
    entry = AdapterName("n", "b", Adapter("aa", "/aa", 4, 8.0, 1), 7, None, "p", True)
    file = KeptNamesFile(tmp_path)
    (tmp_path / "aa.gguf").touch()
    file.apply(NameChange("p", "n", KeptName(entry, "f")))
    assert file.read() == (KeptName(entry, "f"),)
