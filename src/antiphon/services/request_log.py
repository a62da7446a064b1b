"""Who may have a project's requests kept word by word, and who may read them: its owners and the operator."""

from collections.abc import Sequence
from dataclasses import replace

from antiphon.domain.identity import Actor
from antiphon.domain.recording import Record, Recording
from antiphon.domain.tenancy import Project
from antiphon.errors import NotFound, PermissionDenied
from antiphon.services.changes import DirectoryChanges, replace_by_id
from antiphon.services.policy import find_by_id
from antiphon.store.base import RecordStore, TenancyStore


class RequestLog:
    """The kept requests of one server's projects."""

    def __init__(self, changes: DirectoryChanges, tenancy: TenancyStore, records: RecordStore) -> None:
        self._changes = changes
        self._tenancy = tenancy
        self._records = records

    async def set_recording(self, actor: Actor, project: str, recording: Recording | None) -> Project:
        """Has a project's requests kept from now on, or no longer. What was kept stays until it expires.
        Raises NotFound and PermissionDenied."""

        def update() -> Project:
            before = self._require_owner(actor, project)
            new = replace(before, recording=recording)
            revision = self._tenancy.change_project(new, self._changes.attribute_to(actor))
            self._changes.learn(revision, projects=replace_by_id(self._changes.directory.projects, new))
            return new

        return await self._changes.apply(update)

    async def list_records(
        self, actor: Actor, project: str, most: int, before: tuple[int, str] | None
    ) -> Sequence[Record]:
        """The latest first, those before a moment and id. Raises NotFound and PermissionDenied."""
        self._require_owner(actor, project)
        return await self._changes.run_in_thread(lambda: self._records.page(project, most, before))

    async def get_record(self, actor: Actor, id_: str) -> Record:
        """Raises NotFound, also where the actor may not read it."""
        record = await self._changes.run_in_thread(lambda: self._records.one(id_))
        if record is None or not self._is_owner(actor, record.project):
            raise NotFound(f"there is no kept request {id_[:100]}")
        return record

    async def erase(self, actor: Actor, project: str) -> int:
        """Removes what was kept of a project, and what still waits to be kept of requests that began before
        now, in whatever process; how much there was in the database. Raises NotFound and PermissionDenied."""

        def remove() -> int:
            self._require_owner(actor, project)
            removed, revision = self._records.erase(
                project, self._changes.now_ms(), self._changes.attribute_to(actor)
            )
            self._changes.learn(revision)
            return removed

        return await self._changes.apply(remove)

    def _require_owner(self, actor: Actor, project: str) -> Project:
        """A project whose owner, or the operator, the actor is."""
        seen = find_by_id(self._changes.policy.list_projects(actor), project, "project")
        if not self._is_owner(actor, project):
            raise PermissionDenied("only an owner of the project may keep its requests, and read them")
        return seen

    def _is_owner(self, actor: Actor, project: str) -> bool:
        return actor.admin or self._changes.policy.is_owner(actor, project)
