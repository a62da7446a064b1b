"""What an HTTP process has only where keys are on. The database's library is imported nowhere else."""

from antiphon.auth.keyring import Keyring
from antiphon.auth.secrets import given_pepper
from antiphon.auth.tenants import Tenants
from antiphon.domain.context import Clock
from antiphon.settings import Settings


def managing(settings: Settings, clock: Clock) -> tuple[Keyring, Tenants]:
    """Keys, and who changes them. The database's library is imported only here."""
    from antiphon.store.database import Database
    from antiphon.store.tenancy import SqlTenancy

    pepper = given_pepper(settings.keys.pepper or "")
    keyring = Keyring(pepper, clock.wall)
    return keyring, Tenants(
        SqlTenancy(Database(settings.keys.store or "", told=False)), keyring, pepper, clock.wall
    )
