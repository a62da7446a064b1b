"""What is done once on a node, where another process of the machine does it."""

import asyncio
from contextlib import asynccontextmanager, closing

import pytest

from antiphon.domain.context import SystemClock
from antiphon.domain.limits import Measure, Window
from antiphon.errors import StoreUnavailable
from antiphon.ledger.spool import Spool
from antiphon.processes.coordinator.coordinator import open_drain, open_seeder
from antiphon.settings.schema import Settings
from antiphon.settings.tenancy import LedgerSettings
from antiphon.store.database import Database
from antiphon.store.ledger import SqlEntries
from antiphon.store.tenancy import SqlTenancy
from tests.support.ledger_doubles import StoreDouble, build_completion, build_intent
from tests.support.limits import limit
from tests.support.stores import open_new_store
from tests.support.waiting import await_until

PATIENCE = 30.0
BUDGET = limit(100, Measure.OUTPUT_TOKENS, Window.MONTH)  # of the key that `intent` names


@pytest.fixture
def settings(tmp_path):
    return Settings(ledger=LedgerSettings(spool=str(tmp_path / "spool")))


@pytest.fixture
def entries(tmp_path):
    database = open_new_store(tmp_path / "ledger.db")
    yield SqlEntries(database)
    database.close()


@pytest.fixture
def tenancy(entries, tmp_path):
    with closing(SqlTenancy(Database(f"sqlite:///{tmp_path}/ledger.db"))) as kept:
        yield kept


@asynccontextmanager
async def drained(settings, entries):
    """A drain that has found out whether it is the node's."""
    async with open_drain(settings, entries) as drain, asyncio.timeout(PATIENCE):
        await await_until(lambda: drain.status.is_draining or drain.status.other_is_draining)
        yield drain


async def test_beside_the_drain_of_another_the_ledger_is_read_as_it_is(settings, entries, tenancy, tmp_path):
    """Two servers of one directory: the second counts limits too, from what the first brings in."""
    clock = SystemClock()
    spool = Spool(tmp_path / "spool", 8 << 20, 0.2)
    async with drained(settings, entries), drained(settings, entries) as second:
        assert second.status.other_is_draining
        await asyncio.to_thread(spool.start)
        used = build_intent(at=int(clock.wall() * 1_000))
        spool.begin(used)
        spool.complete(build_completion(used, output_tokens=7))
        async with open_seeder(entries, tenancy, second, clock) as seeds:
            taken = await seeds([BUDGET])
        assert [amount for _, amount in taken[BUDGET.id]] == [7]
        await asyncio.to_thread(spool.close)


async def test_the_nodes_own_drain_is_waited_for(settings, entries, tenancy, tmp_path):
    kept = StoreDouble()
    kept.is_down = True
    spool = Spool(tmp_path / "spool", 8 << 20, 0.2)
    await asyncio.to_thread(spool.start)
    spool.begin(build_intent())
    spool.complete(build_completion(build_intent()))
    async with drained(settings, kept) as drain, open_seeder(entries, tenancy, drain, SystemClock()) as seeds:
        with pytest.raises(StoreUnavailable, match="not in the database yet"):
            await seeds([BUDGET])
    await asyncio.to_thread(spool.close)
