"""Builds the parts of an HTTP process that exist only where keys are on: directory, ledger, limits, single
sign-on.

The libraries of the database, of Redis and of tokens are imported only here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import Keyring
from antiphon.auth.secrets import parse_pepper
from antiphon.domain.context import Clock
from antiphon.domain.values import Struct
from antiphon.errors import SettingsError, StartupError, explain_extra
from antiphon.ledger.recorder import StoreRecorder
from antiphon.ledger.spool import Spool
from antiphon.limits.base import Limiter
from antiphon.limits.seeding import LedgerSeeder
from antiphon.pipeline.late_settlements import open_late_settlements
from antiphon.pipeline.rules import Accounting, LimitIndex
from antiphon.processes.budget_alerts import open_budget_watch
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.processes.coordinator.coordinator import FINAL_DRAIN_S, open_seeder
from antiphon.services.changes import DirectoryChanges
from antiphon.services.prices import PriceService
from antiphon.services.request_log import RequestLog
from antiphon.services.tenancy import AccessTokens, TenancyService
from antiphon.services.usage import UsageService
from antiphon.settings.schema import Settings
from antiphon.settings.tenancy import OidcSettings
from antiphon.store.base import Directory
from antiphon.task_group import task_group

if TYPE_CHECKING:
    from antiphon.limits.redis import RedisLimiter
    from antiphon.store.database import Database
    from antiphon.store.directory import SqlFeed
    from antiphon.store.responses import SqlResponses


class TenancyParts(Struct, frozen=True):
    """What an HTTP process has if keys are on: keys, limits and prices in memory, and the services that
    change them."""

    database: "Database"
    """The database of projects, keys, limits, prices and the ledger."""
    feed: "SqlFeed"
    changes: DirectoryChanges
    """Passes each new directory to the keyring and the limit index."""
    keyring: Keyring
    limit_index: LimitIndex
    tenants: TenancyService
    tokens: AccessTokens
    pricing: PriceService
    usage: UsageService
    recorder: StoreRecorder
    recordings: RequestLog
    responses: "SqlResponses"
    watchers: list[Callable[[], object]]
    """Functions that are called in a thread after each change of the keyring."""

    def close(self) -> None:
        """Closes the services and the database. Call it after all requests have ended."""
        self.usage.close()
        self.responses.close()
        self.changes.close()


def build_tenancy(
    settings: Settings, clock: Clock, coordinator: CoordinatorClient, database: "Database"
) -> TenancyParts:
    """Builds all parts. Does not read the database: call `changes.load`."""
    from antiphon.store.directory import SqlFeed
    from antiphon.store.ledger import SqlUsage
    from antiphon.store.request_log import SqlRecords
    from antiphon.store.responses import SqlResponses
    from antiphon.store.tenancy import SqlRules, SqlTenancy

    tenancy_store = SqlTenancy(database)
    pepper = parse_pepper(settings.keys.pepper or "")
    keyring, limit_index = Keyring(pepper, clock.wall), LimitIndex()
    records = SqlRecords(database)
    recorder = StoreRecorder(records, clock.wall)

    watchers: list[Callable[[], object]] = []

    def distribute(directory: Directory) -> None:
        """Passes a new directory to all parts that have a copy in memory, and reports its revision."""
        limit_index.update(
            directory.limits, directory.prices, directory.build_families(), directory.build_limit_names()
        )
        recorder.update_projects(directory)
        keyring.replace_directory(directory)  # last: when a new key is accepted, its limits are known
        for watcher in watchers:
            watcher()
        coordinator.report_revision(directory.revision)

    feed = SqlFeed(database, coordinator.wait_for_revision)
    changes = DirectoryChanges(tenancy_store, [distribute], clock.wall, feed, coordinator.announce)
    tenants = TenancyService(changes, tenancy_store, pepper)
    recordings = RequestLog(changes, tenancy_store, records)
    tokens = AccessTokens(tenants, changes, pepper)
    pricing, usage = (
        PriceService(changes, SqlRules(database)),
        UsageService(changes, SqlUsage(database), clock),
    )
    responses = SqlResponses(database, settings.responses.project_bytes)
    recording_parts = (recorder, recordings, responses, watchers)
    directory_parts = (changes, keyring, limit_index, tenants, tokens)
    return TenancyParts(database, feed, *directory_parts, pricing, usage, *recording_parts)


@asynccontextmanager
async def open_accounting(
    settings: Settings, tenancy: TenancyParts, clock: Clock, coordinator: CoordinatorClient
) -> AsyncIterator[Accounting]:
    """Opens the spool and the limiter, and yields them as the accounting while the context lasts. Raises
    StartupError if the spool cannot be used."""
    from antiphon.store.ledger import SqlEntries
    from antiphon.store.tenancy import SqlTenancy, SqlWarnings

    spool = Spool(
        Path(settings.ledger.spool or ""), settings.ledger.spool_bytes, settings.ledger.sync_interval
    )
    async with AsyncExitStack() as stack:
        await asyncio.to_thread(spool.start)
        limiter: Limiter = coordinator.limits
        if settings.limits.url is not None:
            entries, tenancy_store = SqlEntries(tenancy.database), SqlTenancy(tenancy.database)
            local = coordinator.local_coordinator
            drain = None if local is None else local.drain
            seeds = await stack.enter_async_context(open_seeder(entries, tenancy_store, drain, clock))
            redis = await stack.enter_async_context(
                _connect_redis(settings, settings.limits.url, seeds, clock)
            )
            warnings, add_totals = SqlWarnings(tenancy.database), coordinator.add_totals
            redis.watch = await stack.enter_async_context(
                open_budget_watch(settings.limits, warnings, clock, add_totals)
            )
            limiter = redis
        stack.push_async_callback(asyncio.to_thread, spool.close)
        tenancy.recorder.start()
        stack.push_async_callback(asyncio.to_thread, tenancy.recorder.stop, FINAL_DRAIN_S)
        late_settlements = await stack.enter_async_context(open_late_settlements())
        yield Accounting(
            limiter,
            spool,
            tenancy.limit_index,
            settings.limits.reserve_tokens,
            tenancy.recorder,
            late_settlements=late_settlements,
        )


@asynccontextmanager
async def _connect_redis(
    settings: Settings, url: str, seeds: LedgerSeeder, clock: Clock
) -> "AsyncIterator[RedisLimiter]":
    """Connects to Redis, and yields its limiter while the context lasts. The library of Redis is imported
    only here. Raises SettingsError."""
    try:
        from antiphon.limits.redis import RedisLimiter
    except ModuleNotFoundError:
        raise SettingsError(f"limits.url needs an extra: {explain_extra('redis')}") from None
    fails_open = settings.limits.unavailable == "open"
    limiter = RedisLimiter(url, clock, seeds, fails_open, settings.limits.prefix)
    async with task_group() as group:
        connection_task = group.create_task(limiter.keep_connected())
        try:
            yield limiter
        finally:
            connection_task.cancel()
            await limiter.aclose()


def build_single_sign_on(oidc: OidcSettings, tenancy: TenancyParts, clock: Clock) -> TokenVerifier | None:
    """Returns the verifier of the issuer's tokens, or None if no issuer is set. Raises StartupError if the
    library is missing."""
    if oidc.issuer is None:
        return None
    try:
        from antiphon.auth.signing_keys import SigningKeys, fetch
        from antiphon.auth.single_sign_on import (
            ClaimReader,
            SingleSignOn,
            TokenRequirements,
            TokenVerificationCache,
            parse_group_rules,
        )
    except ModuleNotFoundError:
        raise StartupError(f"single sign-on needs an extra: {explain_extra('oidc')}") from None

    requirements = TokenRequirements(oidc.issuer, oidc.audience or "", oidc.algorithms, oidc.leeway)
    keys = SigningKeys(oidc.issuer, oidc.keys_url, fetch, clock.monotonic)
    reader = ClaimReader(oidc.user_claim, oidc.groups_claim, parse_group_rules(oidc.groups))
    token_cache = TokenVerificationCache(requirements, keys, reader, clock.wall)
    return SingleSignOn(
        token_cache,
        reader.group_projects,
        tenancy.keyring,
        tenancy.tenants,
        lambda: tenancy.changes.directory,
        oidc.add_users,
    )
