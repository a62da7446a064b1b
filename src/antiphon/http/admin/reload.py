"""The reload of the settings: wire types, handler and endpoint."""

from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Request, Response
from antiphon.errors import Conflict, StartupError
from antiphon.http.admin.resource import answer_json, declare_endpoint
from antiphon.services.policy import require_admin
from antiphon.settings.changes import NameChanges, ReloadReport


class ChangedNames(Struct, frozen=True, kw_only=True):
    """Names that a reload added, changed and removed. `settings`: the changed settings of each changed
    name."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    settings: dict[str, list[str]]


class ReloadCard(Struct, frozen=True, kw_only=True):
    """The changes of a reload. `new_keys`: providers whose key file has another key.
    `restarted_engines`: engine hosts that had been given up and run again; `failed_engines`: those that
    could not be started. `restart`: changed settings that
    take effect only after a restart of the server. `late`: processes that have not confirmed
    the change yet."""

    object: Literal["reload"] = "reload"
    providers: ChangedNames
    models: ChangedNames
    aliases: ChangedNames
    new_keys: list[str]
    restarted_engines: list[str]
    failed_engines: list[str]
    restart: list[str]
    late: list[str]


class ReloadResource:
    """The handler of reloads."""

    def __init__(self, reload_settings: Callable[[], Awaitable[ReloadReport]]) -> None:
        """`reload_settings` reloads the settings in all processes. It raises StartupError if they cannot be
        used."""
        self._reload_settings = reload_settings

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            declare_endpoint(
                "POST",
                "/reload",
                self.reload,
                "Load the settings file again: providers, models and aliases",
                gives=ReloadCard,
            ),
        )

    async def reload(self, request: Request) -> Response:
        """Reloads the settings. Answers once all processes use them. Raises Conflict with the reason if the
        settings cannot be used."""
        require_admin(request.actor)
        try:
            report = await self._reload_settings()
        except StartupError as error:
            raise Conflict(f"nothing was changed: {error.message}") from None
        return answer_json(build_reload_card(report))


def build_reload_card(report: ReloadReport) -> ReloadCard:
    return ReloadCard(
        providers=_build_names(report.providers),
        models=_build_names(report.models),
        aliases=_build_names(report.aliases),
        new_keys=list(report.new_keys),
        restarted_engines=list(report.restarted_engines),
        failed_engines=list(report.failed_engines),
        restart=list(report.restart_settings),
        late=list(report.unconfirmed_processes),
    )


def _build_names(changes: NameChanges) -> ChangedNames:
    """Builds the part of a card about providers, models or aliases."""
    return ChangedNames(
        added=list(changes.added),
        changed=list(changes.changed),
        removed=list(changes.removed),
        settings={name: list(names) for name, names in changes.settings.items()},
    )
