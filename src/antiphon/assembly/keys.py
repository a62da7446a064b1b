"""What an HTTP process has only where keys are on. The database's library is imported nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.auth.changes import Changes
from antiphon.auth.keyring import Keyring
from antiphon.auth.pricing import Pricing
from antiphon.auth.reading import UsageService
from antiphon.auth.recording import Recordings
from antiphon.auth.secrets import given_pepper
from antiphon.auth.tenants import Tenants
from antiphon.coordinator.client import CoordinatorClient
from antiphon.domain.context import Clock
from antiphon.ledger.recorder import StoreRecorder
from antiphon.pipeline.rules import LimitIndex
from antiphon.settings import Settings
from antiphon.store.base import Directory

if TYPE_CHECKING:
    from antiphon.store.database import Database


@dataclass(frozen=True, slots=True)
class Managed:
    """Everything of keys, limits and prices that answers from memory, and what changes it."""

    database: "Database"
    """Whose rules and entries are `store.rules.SqlRules` and `store.entries.SqlEntries`."""
    changes: Changes
    """Tells the keyring and the rulebook whatever changes."""
    keyring: Keyring
    rulebook: LimitIndex
    tenants: Tenants
    pricing: Pricing
    reading: UsageService
    recorder: StoreRecorder
    recordings: Recordings
    watchers: list[Callable[[], object]]
    """What is called, in a thread, when something has changed and the keyring knows it."""

    def close(self) -> None:
        """Lets go of the store, when nothing asks it any more."""
        self.reading.close()
        self.tenants.close()


def managing(
    settings: Settings, clock: Clock, coordinator: CoordinatorClient, database: "Database"
) -> Managed:
    """Nothing is read yet: `tenants.load` does."""
    from antiphon.store.changes import SqlFeed
    from antiphon.store.ledger import SqlUsage
    from antiphon.store.request_log import SqlRecords
    from antiphon.store.tenancy import SqlRules, SqlTenancy

    tenancy = SqlTenancy(database)
    pepper = given_pepper(settings.keys.pepper or "")
    keyring, rulebook = Keyring(pepper, clock.wall), LimitIndex()
    records = SqlRecords(database)
    recorder = StoreRecorder(records, clock.wall)

    watchers: list[Callable[[], object]] = []

    def learn(directory: Directory) -> None:
        keyring.learn(directory)
        rulebook.learn(directory.limits, directory.prices, directory.families())
        recorder.learn(directory)
        for watcher in watchers:
            watcher()
        coordinator.know(directory.revision)

    feed = SqlFeed(database, coordinator.wait)
    changes = Changes(tenancy, [learn], clock.wall, feed, coordinator.announce)
    tenants, recordings = Tenants(changes, tenancy, pepper), Recordings(changes, tenancy, records)
    pricing, reading = Pricing(changes, SqlRules(database)), UsageService(changes, SqlUsage(database))
    told = (recorder, recordings, watchers)
    return Managed(database, changes, keyring, rulebook, tenants, pricing, reading, *told)
