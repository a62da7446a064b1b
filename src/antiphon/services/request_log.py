"""Kept requests of projects: its owners and the operator turn this on, read the requests and erase them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import Project, RecordedRequest, RecordingPolicy
from antiphon.errors import NotFound, PermissionDenied
from antiphon.services.changes import DirectoryChanges, replace_by_id
from antiphon.services.policy import find_by_id
from antiphon.store.base import RecordStore, TenancyStore


class RequestLog:
    """Kept requests with their answers, by project."""

    def __init__(self, changes: DirectoryChanges, tenancy: TenancyStore, records: RecordStore) -> None:
        self._changes = changes
        self._tenancy = tenancy
        self._records = records

    async def set_recording(self, actor: Actor, project: str, recording: RecordingPolicy | None) -> Project:
        """Turns keeping on or off for a project. Requests that were kept stay until they expire.

        Raises NotFound and PermissionDenied.
        """

        def update() -> Project:
            before = self._require_owner(actor, project)
            new = replace(before, recording=recording)
            revision = self._tenancy.change_project(new, self._changes.attribute_to(actor))
            self._changes.learn(revision, projects=replace_by_id(self._changes.directory.projects, new))
            return new

        return await self._changes.apply(update)

    async def list_records(
        self, actor: Actor, project: str, most: int, before: tuple[int, str] | None
    ) -> tuple[Sequence[RecordedRequest], bool]:
        """Lists kept requests before a time and id, latest first, and whether there are more. Notes in the
        audit that they were read. Raises NotFound and PermissionDenied."""
        self._require_owner(actor, project)

        def read() -> tuple[Sequence[RecordedRequest], bool]:
            records = self._records.page(project, most + 1, before)
            self._note_reading(actor, project, {"requests": min(len(records), most)})
            return records[:most], len(records) > most

        return await self._changes.run_in_thread(read)

    async def get_record(self, actor: Actor, id_: str) -> RecordedRequest:
        """Returns a kept request, and notes in the audit that it was read. Raises NotFound, also where the
        actor may not read it."""
        record = await self.find_place(actor, id_)

        def note() -> None:
            self._note_reading(actor, record.project, {"request": record.id})

        await self._changes.run_in_thread(note)
        return record

    async def find_place(self, actor: Actor, id_: str) -> RecordedRequest:
        """Returns a kept request to go on from, which nobody is shown. Raises NotFound, also where the actor
        may not read it."""
        record = await self._changes.run_in_thread(lambda: self._records.find_record(id_))
        if record is None or not self._is_owner(actor, record.project):
            raise NotFound(f"there is no kept request {id_[:100]}")
        return record

    def _note_reading(self, actor: Actor, project: str, what: Mapping[str, object]) -> None:
        """Writes the audit entry of a reading, before its answer."""
        self._records.note_reading(project, what, self._changes.attribute_to(actor))

    async def erase(self, actor: Actor, project: str) -> int:
        """Removes a project's kept requests, and those of earlier requests that still wait in any process.

        Returns how many were in the database. Raises NotFound and PermissionDenied.
        """

        def remove() -> int:
            self._require_owner(actor, project)
            removed, revision = self._records.erase(
                project, self._changes.now_ms(), self._changes.attribute_to(actor)
            )
            self._changes.learn(revision)
            return removed

        return await self._changes.apply(remove)

    def _require_owner(self, actor: Actor, project: str) -> Project:
        """The project, if the actor owns it or is the operator. Raises NotFound and PermissionDenied."""
        seen = find_by_id(self._changes.policy.list_projects(actor), project, "project")
        if not self._is_owner(actor, project):
            raise PermissionDenied("only an owner of the project may keep its requests, and read them")
        return seen

    def _is_owner(self, actor: Actor, project: str) -> bool:
        return actor.admin or self._changes.policy.is_owner(actor, project)
