"""HTTP servers with knowledge tables: one without keys, and one with keys of two projects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from antiphon.assembly.dialects import create_dialects
from antiphon.dialects.base import DialectOptions
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.tenancy import Grant, KeyKind, ProjectRole
from antiphon.domain.values import replace
from antiphon.engines.registry import ModelRegistry
from antiphon.http.admin.knowledge import KnowledgeResource
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.retrieval.base import IndexLimits, KnowledgeIndex
from antiphon.retrieval.ingest.document_reader import SandboxedReader
from antiphon.retrieval.knowledge import ChunkSizes, SplitDocument, StoredFile, TokenRule
from antiphon.services.knowledge.tables import KnowledgeErasure
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.http_server import (
    KEY,
    PROCESS_PATIENCE,
    ProcessServed,
    Reply,
    Served,
    serving_edge,
)
from tests.support.keyed_server import ROOT, Keyed, keyed
from tests.support.knowledge import LIMITS, Knowledge, open_service

TABLES = "/v1/knowledge/tables"
JAMAI_TABLES = "/jamai/api/v2/gen_tables/knowledge"
BOUNDARY = "frontier"


def form(*parts: tuple[str, bytes | str, str | None]) -> dict[str, Any]:
    """The body and the headers of a form. A part has a name, a value, and perhaps a file name."""
    body = b""
    for name, value, file_name in parts:
        content = value if isinstance(value, bytes) else value.encode()
        named = f'name="{name}"' + ("" if file_name is None else f'; filename="{file_name}"')
        kind = "" if file_name is None else "Content-Type: application/octet-stream\r\n"
        head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; {named}\r\n{kind}\r\n"
        body += head.encode() + content + b"\r\n"
    body += f"--{BOUNDARY}--\r\n".encode()
    return {"body": body, "headers": {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}}


@dataclass(frozen=True)
class Serving:
    """A server, and the service behind it."""

    served: Served
    knowledge: Knowledge

    async def ask(self, path: str = "", body: Any = None, **how: Any) -> Reply:
        return await self.served.ask(TABLES + path, body, **how)

    async def upload(self, table: str, *parts: tuple[str, bytes | str, str | None]) -> Reply:
        return await self.ask(f"/{table}/documents", **form(*parts))


@asynccontextmanager
async def serving(folder: Path, limits: IndexLimits = LIMITS) -> AsyncIterator[Serving]:
    async with open_service(folder, limits=limits) as knowledge:
        models: ModelRegistry = knowledge.models
        pipeline = Pipeline(models, Metrics(), restart_patience=0.0, knowledge=knowledge.index)
        edge = AppState(pipeline, models, OpenAI(), ServerSettings(), knowledge=knowledge.service)
        async with serving_edge(edge) as (port, connections):
            yield Serving(ProcessServed(port, ScriptedEngine(), edge, connections), knowledge)


MARK = "bravo"
"""Stands in every text of the other project."""
NOWHERE = "nowhere"


class KeyedKnowledge(Keyed):
    """A server with keys that reads files in processes."""

    patience = PROCESS_PATIENCE


@dataclass
class Tenants:
    """Callers, and a table of another project."""

    server: Keyed
    knowledge: Knowledge
    callers: dict[str, str] = field(default_factory=dict)
    """Keys by their holders."""
    other: str = ""
    """The key of the other project's owner."""
    project: str = ""
    """The other project's id."""
    document: str = ""
    chunk: str = ""

    async def ask(self, key: str, method: str, path: str, body: Any = None) -> Any:
        how = form(("file", MARK, "a.txt")) if (method, path[-9:]) == ("POST", "documents") else None
        if how is not None:
            return await self.server.asked(key, TABLES + path, method=method, **how)
        return await self.server.asked(key, TABLES + path, body, method=method)

    async def show(self) -> list[Any]:
        """All that the other project has."""
        paths = ("", "/t", "/t/documents", "/t/chunks")
        return [(await self.ask(self.other, "GET", path)).json() for path in paths]


@asynccontextmanager
async def opened(folder: Path, index: KnowledgeIndex | None = None) -> AsyncIterator[Tenants]:
    async with keyed(folder) as plain, open_service(folder, index=index) as knowledge:
        knowledge.callers.find_any = True
        options = DialectOptions(max_file_bytes=knowledge.service.max_file_bytes)
        _, *dialects = create_dialects(options)
        pipeline = replace(plain.edge.pipeline, knowledge=knowledge.index)
        tenants = plain.tenants
        erasure = KnowledgeErasure(tenants._changes, tenants._tenancy, knowledge.index, knowledge.uploads)
        admin = (*plain.edge.admin_endpoints, *KnowledgeResource(erasure).endpoints())
        edge = replace(
            plain.edge,
            knowledge=knowledge.service,
            prefixed_dialects=tuple(dialects),
            pipeline=pipeline,
            admin_endpoints=admin,
        )
        async with serving_edge(edge) as (port, connections):
            server = KeyedKnowledge(port, plain.engine, edge, connections)
            object.__setattr__(server, "tenants", plain.tenants)
            object.__setattr__(server, "admin", plain.admin)
            made = Tenants(server, knowledge)
            await fill(made)
            yield made


async def fill(made: Tenants) -> None:
    """Nine callers of the project `default`, and another project with a table."""
    server = made.server
    for role in (ProjectRole.VIEWER, ProjectRole.MEMBER, ProjectRole.OWNER):
        user, made.callers[role] = await server.person(role)
    writes = Grant(None, ("/v1/*", "/v1/knowledge/*"))
    made.callers["service"] = await server.token(KeyKind.SERVICE, project="default")
    made.callers["writing service"] = await server.token(KeyKind.SERVICE, project="default", grant=writes)
    bound = {"user": user, "project": "default"}
    made.callers["bound"] = await server.token(KeyKind.ACCESS_TOKEN, **bound)
    searches = Grant(None, (f"{TABLES}/*/search",))
    made.callers["searching service"] = await server.token(KeyKind.SERVICE, project="default", grant=searches)
    made.callers["settings"] = KEY
    made.callers["operator"] = server.admin
    asked = {"name": f"P {MARK}"}
    project = made.project = (await server.asked(server.admin, f"{ROOT}/projects", asked)).json()["id"]
    _, made.other = await server.person(ProjectRole.OWNER, project)
    assert (await made.ask(made.other, "POST", "", {"name": "t"})).status == 201
    how = form(("file", f"{MARK} text", f"{MARK}.txt"), ("wait", "true", None))
    added = await server.asked(made.other, f"{TABLES}/t/documents", **how)
    assert added.status == 200, added.body
    made.document = added.json()["id"]
    made.chunk = (await made.ask(made.other, "GET", "/t/chunks")).json()["data"][0]["id"]


READS = {"viewer", "member", "owner", "service", "writing service", "bound", "settings", "operator"}
WRITES = READS - {"viewer", "service"}
SEARCHES = READS - {"viewer"} | {"searching service"}


class HeldReader:
    """Reads files whose names begin with `held` only when the test lets it."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.go = asyncio.Event()
        self._read = SandboxedReader.read

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        held = self

        async def read(
            reader: SandboxedReader, file: StoredFile, sizes: ChunkSizes, tokens: TokenRule | None
        ) -> SplitDocument:
            held.names.append(file.name)
            if file.name.startswith("held"):
                await held.go.wait()
            return await held._read(reader, file, sizes, tokens)

        monkeypatch.setattr(SandboxedReader, "read", read)
