"""Recorded requests of projects. Owners and the operator turn recording on, read the requests and erase
them.
"""

from collections.abc import Mapping, Sequence

from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import Project, RecordedRequest, RecordingPolicy
from antiphon.domain.values import replace
from antiphon.errors import NotFound, PermissionDenied
from antiphon.services.changes import DirectoryChanges, replace_by_id
from antiphon.services.policy import find_by_id
from antiphon.store.base import RecordStore, TenancyStore


class RequestLog:
    """The recorded requests of all projects, as owners and the operator manage them."""

    def __init__(self, changes: DirectoryChanges, tenancy: TenancyStore, records: RecordStore) -> None:
        self._changes = changes
        self._tenancy = tenancy
        self._records = records

    async def set_recording(self, actor: Actor, project: str, recording: RecordingPolicy | None) -> Project:
        """Turns recording on or off for a project. Earlier recorded requests stay until they expire.

        Raises NotFound and PermissionDenied.
        """

        def update() -> Project:
            changed_project = replace(self._require_owner(actor, project), recording=recording)
            revision = self._tenancy.change_project(changed_project, self._changes.attribute_to(actor))
            self._changes.update_directory(
                revision, projects=replace_by_id(self._changes.directory.projects, changed_project)
            )
            return changed_project

        return await self._changes.apply(update)

    async def list_records(
        self, actor: Actor, project: str, max_records: int, before: tuple[int, str] | None
    ) -> tuple[Sequence[RecordedRequest], bool]:
        """Lists at most `max_records` recorded requests, the latest first, and tells whether there are more.
        `before`: only requests before this time (Unix milliseconds) and id. Writes an audit entry. Raises
        NotFound and PermissionDenied."""
        self._require_owner(actor, project)

        def read() -> tuple[Sequence[RecordedRequest], bool]:
            records = self._records.load_page(project, max_records + 1, before)
            self._note_reading(actor, project, {"requests": min(len(records), max_records)})
            return records[:max_records], len(records) > max_records

        return await self._changes.run_in_thread(read)

    async def get_record(self, actor: Actor, id_: str) -> RecordedRequest:
        """Returns a recorded request, and writes an audit entry. Raises NotFound, also if the actor cannot
        read it."""
        record = await self.find_page_start(actor, id_)

        def note() -> None:
            self._note_reading(actor, record.project, {"request": record.id})

        await self._changes.run_in_thread(note)
        return record

    async def find_page_start(self, actor: Actor, id_: str) -> RecordedRequest:
        """Returns a recorded request whose time and id start the next page. Writes no audit entry, because
        nobody sees the request. Raises NotFound, also if the actor cannot read it."""
        record = await self._changes.run_in_thread(lambda: self._records.find_record(id_))
        if record is None or not self._is_owner(actor, record.project):
            raise NotFound(f"there is no recorded request {id_[:100]}")
        return record

    def _note_reading(self, actor: Actor, project: str, detail: Mapping[str, object]) -> None:
        """Writes an audit entry about requests that the actor reads. Call it before you return the
        requests."""
        self._records.note_reading(project, detail, self._changes.attribute_to(actor))

    async def erase(self, actor: Actor, project: str) -> int:
        """Removes a project's recorded requests. A request that is still running is not recorded when it
        ends. Returns the number of removed requests. Raises NotFound and PermissionDenied."""

        def remove() -> int:
            self._require_owner(actor, project)
            removed, revision = self._records.erase(
                project, self._changes.now_ms(), self._changes.attribute_to(actor)
            )
            self._changes.update_directory(revision)
            return removed

        return await self._changes.apply(remove)

    def _require_owner(self, actor: Actor, project: str) -> Project:
        """Returns the project if the actor is its owner or the operator. Raises NotFound and
        PermissionDenied."""
        visible_project = find_by_id(self._changes.policy.list_projects(actor), project, "project")
        if not self._is_owner(actor, project):
            raise PermissionDenied("only an owner of the project can record, read or erase its requests")
        return visible_project

    def _is_owner(self, actor: Actor, project: str) -> bool:
        return actor.admin or self._changes.policy.is_owner(actor, project)
