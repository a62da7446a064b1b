"""Loads and unloads of one content at the same time, by two HTTP processes of a server or by two servers of a
registry. A name never loses its file, nor its adapter in the engine."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from antiphon.domain.models import Adapter, AdapterName, KeptName, NameChange
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import EngineError
from antiphon.pipeline.adapters import (
    MAX_STORES,
    AdapterRegistry,
    AdapterRequest,
    AdapterTarget,
    ProjectQuota,
)
from antiphon.processes.ipc import from_line
from antiphon.telemetry.metrics import Metrics
from antiphon.weights.adapter_store import KeptNamesFile
from antiphon_testing import FakeClock, ScriptedEngine

TURNS = 50
"""Turns of the event loop that suffice for a load which nothing delays."""


async def do_nothing() -> None:
    """Lets everything else go on at once."""


@dataclass
class Engine:
    """The one engine of all processes, as far as adapters are concerned."""

    digests: set[str] = field(default_factory=set)
    before_remove: Callable[[], Awaitable[None]] = do_nothing

    async def add_adapter(self, digest: str, path: str) -> None:
        self.digests.add(digest)

    async def remove_adapter(self, digest: str) -> None:
        await self.before_remove()
        self.digests.discard(digest)


@dataclass
class Node:
    """The engine, the names and the registry of a server with several HTTP processes."""

    file: KeptNamesFile
    engine: Engine = field(default_factory=Engine)
    revision: int = 0
    names: bytes = b""
    processes: "list[Process]" = field(default_factory=list)
    before_answer: Callable[[], Awaitable[None]] = do_nothing
    """Happens when the names are published, and no process knows it yet."""

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        is_next = revision == self.revision
        if is_next:
            if change:
                self.file.apply(from_line(change, NameChange))
            self.revision, self.names = revision + 1, names
            await self.before_answer()
        for process in self.processes:
            process.revision = self.revision
            process.adapters.update_names(self.names)
        return is_next


@dataclass
class Process:
    """One HTTP process, and what it knows of the shared names."""

    node: Node
    models: ModelRegistry
    adapters: AdapterRegistry
    revision: int = 0
    after_keep: Callable[[], Awaitable[None]] = do_nothing

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool:
        return await self.node.publish(revision, names, change)

    async def keep(self, path: str, _: Path | None) -> Adapter:
        file = self.node.file.registry / f"{path}.gguf"
        file.write_bytes(b"x" * 100)
        await self.after_keep()
        return Adapter(path, str(file), 4, 8.0, 100)

    async def load(self, project: str) -> None:
        await self.adapters.load(AdapterRequest("mine", "aa", project=project))

    async def unload(self, project: str) -> None:
        await self.adapters.unload("mine", project)

    def owners(self) -> list[str | None]:
        return [model.project for model in self.models.list_adapters()]


def start(node: Node) -> Process:
    models = ModelRegistry((Model("base", (ModelRoute(ScriptedEngine()),), 1),))
    process = Process(node, models, AdapterRegistry(models, {}, FakeClock(), Metrics()))
    target = AdapterTarget(node.engine, process.keep, lambda _: (ScriptedEngine(),))
    process.adapters = AdapterRegistry(models, {"base": target}, FakeClock(), Metrics(), process, node.file)
    process.adapters.quota = ProjectQuota(2, 1000)
    node.processes.append(process)
    return process


@pytest.fixture(params=[True, False], ids=["kept", "forgotten"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(KeptNamesFile(tmp_path, request.param))


def require_served(process: Process, project: str) -> None:
    """Checks that the project's adapter has its file, and that the engine has it."""
    assert process.owners() == [project]
    assert (process.node.file.registry / "aa.gguf").exists()
    assert process.node.engine.digests == {"aa"}
    if process.node.file.stores_names:
        assert [kept.entry.project for kept in process.node.file.read()] == [project]


async def test_a_load_during_an_unload_keeps_its_adapter(node: Node) -> None:
    one, two = start(node), start(node)
    await one.load("p")
    async with asyncio.TaskGroup() as group:

        async def load_meanwhile() -> None:
            group.create_task(two.load("q"))
            for _ in range(TURNS):
                await asyncio.sleep(0)

        node.engine.before_remove = load_meanwhile
        await one.unload("p")
    require_served(one, "q")
    require_served(two, "q")


async def test_an_unload_during_a_load_takes_no_file(node: Node) -> None:
    one, two = start(node), start(node)
    await one.load("p")
    kept = list[int]()

    async def unload_meanwhile() -> None:
        kept.append(1)
        if len(kept) == 1:
            await one.unload("p")

    two.after_keep = unload_meanwhile
    await two.load("q")
    assert len(kept) == 2, "the file that the unload removed is kept once more"
    require_served(two, "q")


async def test_an_unload_in_one_process_takes_no_file(node: Node) -> None:
    process = start(node)
    await process.load("p")

    async def unload_meanwhile() -> None:
        process.after_keep = do_nothing
        await process.unload("p")

    process.after_keep = unload_meanwhile
    await process.load("q")
    require_served(process, "q")


async def test_a_caller_who_leaves_while_names_change_takes_no_file(node: Node) -> None:
    process = start(node)
    published = asyncio.Event()

    async def wait_forever() -> None:
        node.before_answer = do_nothing
        published.set()
        await asyncio.Event().wait()

    node.before_answer = wait_forever
    async with asyncio.TaskGroup() as group:
        load = group.create_task(process.load("p"))
        await published.wait()
        assert process.owners() == [], "the process does not know yet that the name is published"
        load.cancel()
    require_served(process, "p")


async def test_a_caller_who_waits_for_another_server_can_leave(node: Node) -> None:
    process, other = start(node), KeptNamesFile(node.file.registry)
    entered = asyncio.Event()

    async def note_kept() -> None:
        entered.set()

    process.after_keep = note_kept
    async with other.hold_changes():
        async with asyncio.TaskGroup() as group:
            load = group.create_task(process.load("p"))
            await entered.wait()
            load.cancel()
        assert load.cancelled() and process.owners() == []
    await process.load("p")
    require_served(process, "p")


async def test_a_load_whose_file_always_goes_ends(tmp_path: Path) -> None:
    process = start(Node(KeptNamesFile(tmp_path)))
    kept: list[Path] = []

    async def remove() -> None:
        kept.append(tmp_path / "aa.gguf")
        kept[-1].unlink()

    process.after_keep = remove
    with pytest.raises(EngineError, match=r"cannot be stored: its file aa\.gguf is not in the registry"):
        await process.load("p")
    assert len(kept) == MAX_STORES and process.owners() == []


def make_change(project: str, path: str = "/aa.gguf") -> NameChange:
    entry = AdapterName("mine", "base", Adapter("aa", path, 4, 8.0, 100), 7, None, project, True)
    return NameChange(project, "mine", KeptName(entry, "f"))


@pytest.mark.parametrize("name", ["aa.gguf", "aa.safetensors"], ids=["llama", "vllm"])
def test_a_server_that_keeps_no_names_takes_no_file_of_another(tmp_path: Path, name: str) -> None:
    keeping, forgetting = KeptNamesFile(tmp_path), KeptNamesFile(tmp_path, stores_names=False)
    (tmp_path / name).touch()
    keeping.apply(make_change("p", f"/elsewhere/{name}"))
    forgetting.remove_file("aa")
    assert (tmp_path / name).exists()
    keeping.apply(NameChange("p", "mine", None))
    forgetting.remove_file("aa")
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["aa.gguf", "aa.safetensors"], ids=["llama", "vllm"])
def test_the_file_of_a_kept_name_is_found_in_its_registry(tmp_path: Path, name: str) -> None:
    file, adapter = KeptNamesFile(tmp_path), Adapter("aa", f"/elsewhere/{name}", 4, 8.0, 100)
    assert f"its file {name} is not in the registry" in (file.find_obstacle(adapter) or "")
    (tmp_path / name).write_bytes(b"x" * 100)
    assert file.find_obstacle(adapter) is None
    assert file.locate(adapter).path == str(tmp_path / name)


@pytest.mark.parametrize("stores_names", [True, False])
def test_no_name_is_kept_without_its_file(tmp_path: Path, stores_names: bool) -> None:
    file = KeptNamesFile(tmp_path, stores_names)
    with pytest.raises(FileNotFoundError, match="the adapter's file is gone; load it again"):
        file.apply(make_change("p"))
    assert file.read() == ()


async def test_a_registry_without_a_lock_refuses_changes(tmp_path: Path) -> None:
    process = start(Node(KeptNamesFile(tmp_path)))
    (tmp_path / "changes.lock").mkdir()
    with pytest.raises(EngineError, match="ANTIPHON_LORA_REGISTRY"):
        await process.load("p")


HOLDER = """
import asyncio, sys
from pathlib import Path
from antiphon.weights.adapter_store import KeptNamesFile

async def hold():
    async with KeptNamesFile(Path(sys.argv[1])).hold_changes():
        print("held", flush=True)
        await asyncio.Event().wait()

asyncio.run(hold())
"""


async def test_the_lock_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    command = (sys.executable, "-c", HOLDER, str(tmp_path))
    holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert holder.stdout is not None and await holder.stdout.readline() == b"held\n"
    process = start(Node(KeptNamesFile(tmp_path)))
    async with asyncio.TaskGroup() as group:
        load = group.create_task(process.load("p"))
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not load.done() and process.owners() == []
        os.kill(holder.pid, signal.SIGKILL)
        await holder.wait()
    require_served(process, "p")
