"""An HTTP server with keys, in the process of the test."""

import asyncio
from contextlib import asynccontextmanager

from antiphon.auth.keyring import Keyring, SettingsKey
from antiphon.auth.secrets import Pepper
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.ledger import Entry
from antiphon.domain.tenancy import KeyKind
from antiphon.domain.values import replace
from antiphon.http.admin.keys import KeyResource
from antiphon.http.admin.limits import LimitResource
from antiphon.http.admin.model_warnings import ModelWarnings
from antiphon.http.admin.prices import PriceResource
from antiphon.http.admin.recording import RecordingResource
from antiphon.http.admin.tenants import TenantResource
from antiphon.http.admin.usage import UsageResource
from antiphon.http.in_flight import InFlightRegistry
from antiphon.limits.local import LocalLimiter
from antiphon.services.changes import DirectoryChanges
from antiphon.services.limits import LimitService
from antiphon.services.policy import KeyRequest
from antiphon.services.prices import PriceService
from antiphon.services.request_log import RequestLog
from antiphon.services.responses import ResponseKeeper, ResponseLimits
from antiphon.services.tenancy import AccessTokens, TenancyService
from antiphon.services.usage import UsageService
from antiphon.store.ledger import SqlEntries, SqlUsage
from antiphon.store.request_log import SqlRecords
from antiphon.store.responses import SqlResponses
from antiphon.store.tenancy import SqlRules, SqlTenancy
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.http_server import (
    KEY,
    Served,
    build_edge,
    serving_edge,
)
from tests.support.stores import open_new_store

OPERATOR = Actor(ActorKind.ADMIN, "operator", rights=EVERY_RIGHT)
ROOT = "/admin/v1"
PLAIN = Entry("", "req", 0, "default", "key_x", None, "openai", "/v1/chat/completions", "m", "m", status="ok")
"""A row of the ledger."""


class Keyed(Served):
    """A server with keys; the first of them the operator's."""

    admin = ""
    """The operator's key."""

    entries: SqlEntries
    """The ledger of the server's database."""
    changes: DirectoryChanges
    tenants: TenancyService
    limiting: LimitService
    pricing: PriceService
    recordings: RequestLog
    reading: UsageService

    async def prepare(self, **parts):
        for name, part in parts.items():
            object.__setattr__(self, name, part)
        await self.changes.load()
        made = await self.tenants.add_key(OPERATOR, KeyRequest(KeyKind.ADMIN))
        object.__setattr__(self, "admin", made.secret)
        return self

    async def asked(self, token, path, body=None, **how):
        headers = {"authorization": f"Bearer {token}"} | how.pop("headers", {})
        return await self.ask(path, body, headers=headers, **how)

    async def person(self, role, project="default"):
        """An access token of a new user of that role."""
        user = await self.tenants.add_user(OPERATOR, str(role), None, "")
        await self.tenants.put_member(OPERATOR, project, user.id, role)
        return user.id, await self.token(KeyKind.ACCESS_TOKEN, user=user.id)

    async def token(self, kind, **said):
        return (await self.tenants.add_key(OPERATOR, KeyRequest(kind, **said))).secret


@asynccontextmanager
async def keyed(folder, engine=None, trusted_proxies=(), accounting=None, **how):
    """`accounting`: gets the limits and prices of the database, as in a server."""
    database = open_new_store(folder / "antiphon.db", **how)
    pepper = Pepper(b"p" * 32)
    scripted = engine if isinstance(engine, ScriptedEngine) else ScriptedEngine(engine or ScriptedAnswer())
    plain = build_edge(scripted, trusted_proxies=trusted_proxies, accounting=accounting)
    clock = plain.clock.wall
    ring = Keyring(pepper, clock)
    tenancy = SqlTenancy(database)
    ongoing, loop = InFlightRegistry(ring.accepts), asyncio.get_running_loop()

    def look(_) -> None:
        loop.call_soon_threadsafe(ongoing.end_unaccepted)

    def update_limits(directory) -> None:
        if accounting is not None:
            limits = (directory.build_families(), directory.build_limit_names())
            accounting.limit_index.update(directory.limits, directory.prices, *limits)

    changes = DirectoryChanges(tenancy, [update_limits, ring.replace_directory, look], clock)
    tenants = TenancyService(changes, tenancy, pepper)
    limiting = LimitService(changes, SqlRules(database), LocalLimiter(plain.clock))
    pricing, reading = (
        PriceService(changes, SqlRules(database)),
        UsageService(changes, SqlUsage(database), plain.clock),
    )
    recordings = RequestLog(changes, tenancy, SqlRecords(database))
    responses = SqlResponses(database, 256 << 20)
    warnings = ModelWarnings(plain.models, pricing)
    resources = (
        TenantResource(tenants),
        KeyResource(tenants, warnings),
        LimitResource(limiting, plain.models, warnings),
        PriceResource(pricing, warnings),
        RecordingResource(recordings),
        UsageResource(reading, plain.clock),
    )
    edge = replace(
        plain,
        in_flight=ongoing,
        verifiers=(SettingsKey(KEY, is_only_key=False), ring),
        keys_on=True,
        responses=ResponseKeeper(responses, ResponseLimits(), plain.clock),
        tokens=AccessTokens(tenants, changes, pepper),
        admin_endpoints=tuple(endpoint for each in resources for endpoint in each.endpoints()),
    )
    async with serving_edge(edge) as (port, connections):
        yield await Keyed(port, scripted, edge, connections).prepare(
            entries=SqlEntries(database),
            changes=changes,
            tenants=tenants,
            limiting=limiting,
            pricing=pricing,
            recordings=recordings,
            reading=reading,
        )
    reading.close()
    responses.close()
    changes.close()
