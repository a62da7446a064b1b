"""`antiphon knowledge` against a real server, in this process."""

import asyncio
import json
import re
import subprocess
from array import array
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from antiphon_testing import EmbeddingScript
from tests.support.commands import run_command
from tests.support.knowledge_server import Serving, serving
from tests.support.pty_screen import open_screen

Ask = Callable[..., Awaitable["subprocess.CompletedProcess[str]"]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "server") as running:
        yield running


@pytest.fixture
def ask(server: Serving, tmp_path: Path) -> Ask:
    """Runs a command beside the server, in the test's directory."""
    run_here = partial(run_command, cwd=tmp_path, env={"ANTIPHON_HOME": str(tmp_path)})

    async def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        words = ["knowledge", *arguments, "--url", server.served.url]
        return await asyncio.to_thread(run_here, *words)

    return run


async def test_from_a_table_to_an_answer_and_back(ask: Ask, server: Serving, tmp_path: Path) -> None:
    assert "antiphon knowledge create" in (await ask("list")).stdout
    assert (await ask("create", "my table", "--chunk-size", "100")).stdout == "my table\n"
    (tmp_path / 'rules "1".md').write_text("# Leave\n\nYou have thirty days.")
    (tmp_path / "b.txt").write_text("apples are red")
    added = await ask("add", "my table", 'rules "1".md', "b.txt")
    assert added.stdout == 'added rules "1".md: 1 chunks\nadded b.txt: 1 chunks\n', added.stderr
    found = await ask("search", "my table", "thirty days", "-k", "1")
    assert 'rules "1".md' in found.stdout and "You have thirty days." in found.stdout
    tables = json.loads((await ask("list", "--json")).stdout)["tables"]
    assert [(each["name"], each["documents"], each["chunk_size"]) for each in tables] == [
        ("my table", 2, 100)
    ]
    documents = json.loads((await ask("list", "my table", "--json")).stdout)["documents"]
    assert (await ask("remove", "my table", documents[0]["id"])).returncode == 0
    assert "b.txt" not in (await ask("list", "my table")).stdout


async def test_a_bar_shows_how_far_a_file_is(ask: Ask, server: Serving, tmp_path: Path) -> None:
    await ask("create", "t", "--chunk-size", "20")
    (tmp_path / "long.txt").write_text("apples are red and sweet. " * 150)
    hold, loop = asyncio.Event(), asyncio.get_running_loop()
    server.knowledge.engine.behaviour = EmbeddingScript(hold)

    def look() -> str:
        arguments = ("knowledge", "add", "t", "long.txt", "--url", server.served.url)
        with open_screen(*arguments, cwd=tmp_path, env={"ANTIPHON_HOME": str(tmp_path)}) as shown:
            shown.expect("long.txt")
            shown.expect("0/")
            loop.call_soon_threadsafe(hold.set)
            shown.expect("chunks")
            shown.expect("added long.txt: ")
            assert shown.end() == 0
            return shown.text

    shown = await asyncio.to_thread(look)
    assert "\u2501" in shown, "the bar is drawn"
    assert re.search(r"\b(\d{3})/\1\b", shown), "it counts all chunks"


async def list_contents(server: Serving, table: str) -> tuple[list[Any], list[Any]]:
    """What a table has of documents and of chunks, but for times and ids of chunks."""
    documents = (await server.ask(f"/{table}/documents")).json()["data"]
    chunks = (await server.ask(f"/{table}/chunks?vectors=true&limit=1000")).json()["data"]
    for each in (*documents, *chunks):
        del each["created_at"], each["updated_at"]
        each.pop("table", None)
    return documents, sorted(({**each, "id": ""} for each in chunks), key=str)


async def test_a_table_travels_as_one_file(ask: Ask, server: Serving, tmp_path: Path) -> None:
    await ask("create", "t", "--chunk-size", "20")
    (tmp_path / "a.txt").write_text("apples are red 漢字")
    (tmp_path / "b.md").write_text("# Pears\n\n" + "pears are green and sweet\n\n" * 200)
    await ask("add", "t", "a.txt", "b.md")
    loose = {"text": "a loose chunk", "page": 7, "metadata": {"kind": "note"}}
    assert (await server.ask("/t/chunks", {"chunks": [loose]})).status == 201
    before = await list_contents(server, "t")
    exported = await ask("export", "t", "t.jsonl")
    assert exported.stdout == f"wrote {len(before[1])} chunks to t.jsonl\n" and len(before[1]) > 130
    again = await ask("export", "t", "t.jsonl")
    assert (again.returncode, "cannot be written" in again.stderr) == (1, True)
    asked = len(server.knowledge.engine.asked)
    made = await ask("import", "t.jsonl", "--name", "u")
    counts = f"made u of {len(before[1])} chunks in 2 documents"
    assert made.stdout == f"{counts}; the vectors come from the file\n", made.stderr
    texts = [text for request in server.knowledge.engine.asked[asked:] for text in request.texts]
    assert len(texts) == 2, "the dimensions of the model, and the text that tells whether it is the same"
    assert await list_contents(server, "u") == before, "ids of documents, metadata and vectors are the same"
    (hit,) = json.loads((await ask("search", "u", "apples", "-k", "1", "--json")).stdout)["hits"]
    assert (hit["chunk"]["text"][:14], hit["chunk"]["file_name"]) == ("apples are red", "a.txt")
    added = await ask("add", "u", "a.txt", "--json")
    assert json.loads(added.stdout)["documents"][0]["id"] == before[0][1]["id"], "the same file is known"


async def test_another_models_vectors_are_made_anew(ask: Ask, server: Serving, tmp_path: Path) -> None:
    await ask("create", "t")
    (tmp_path / "a.txt").write_text("apples are red")
    await ask("add", "t", "a.txt")
    await ask("export", "t", "t.jsonl")
    lines = (tmp_path / "t.jsonl").read_text().splitlines()
    head = json.loads(lines[0])
    probe = array("f", b64decode(head["probe"]))
    turned = array("f", [*probe[1:], probe[0]]).tobytes()  # of the same length, by another model
    other = [json.dumps(head | {"probe": b64encode(turned).decode()}), *lines[1:]]
    (tmp_path / "other.jsonl").write_text("\n".join(other))
    made = await ask("import", "other.jsonl", "--name", "u")
    assert made.stdout == "made u of 1 chunks in 1 documents; e made new vectors\n", made.stderr
    assert (await list_contents(server, "u"))[0] == (await list_contents(server, "t"))[0]
    lost = await ask("import", "t.jsonl", "--name", "v", "--model", "none")
    assert (lost.returncode, "none" in lost.stderr) == (1, True)
    (tmp_path / "t.jsonl").write_text((tmp_path / "t.jsonl").read_text() + '{"text": ""}\n')
    assert (await ask("import", "t.jsonl", "--name", "w")).returncode == 1
    names = [each["name"] for each in json.loads((await ask("list", "--json")).stdout)["tables"]]
    assert names == ["t", "u"], "nothing stays of an import that fails"


async def test_what_goes_wrong_is_one_sentence(ask: Ask, tmp_path: Path) -> None:
    await ask("create", "t", "--words-only")
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "other.jsonl").write_text("{}\n")
    for arguments, words in (
        (("create", "t"), "'t'"),
        (("add", "t", "none.txt"), "none.txt cannot be read"),
        (("add", "t", "a.json"), "a.json"),
        (("add", "none", "a.json"), "'none'"),
        (("search", "none", "a"), "'none'"),
        (("remove", ".."), "is no name"),
        (("import", "other.jsonl"), "antiphon knowledge export"),
    ):
        ended = await ask(*arguments)
        assert ended.returncode == 1, arguments
        assert words in ended.stderr and ended.stderr.count("\n") == 1, ended.stderr
