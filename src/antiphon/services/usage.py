"""Reports over the ledger for callers, and recorded requests of projects.

Reports run in threads. The operator sees the whole ledger, and an owner sees the whole project. A viewer sees
the sums of the project, but not for each person. A member and a service key see only their own usage. A
project that the actor cannot see raises NotFound. Owners and the operator turn the recording of a project's
requests on, read them and erase them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from antiphon.domain.identity import Actor, ActorKind, Right
from antiphon.domain.ledger import (
    Condition,
    Dimension,
    Entry,
    EntryField,
    EntryPosition,
    EntrySelection,
    LedgerReport,
    Tag,
)
from antiphon.domain.prices import find_currency
from antiphon.domain.tenancy import Project, ProjectRole, RecordedRequest, RecordingPolicy
from antiphon.domain.values import replace
from antiphon.errors import NotFound, PermissionDenied
from antiphon.services.changes import DirectoryChanges, replace_by_id
from antiphon.services.policy import find_by_id
from antiphon.store.base import RecordStore, TenancyStore, UsageStore

THREADS = 2
"""The most reads at the same time. One long read must not delay all others, and many reads must not use every
connection of the store."""

PERSONAL_FIELDS = frozenset(
    {EntryField.USER, EntryField.KEY, EntryField.END_USER, EntryField.REQUEST_ID, EntryField.PARENT}
)
"""Fields that identify a person."""

T = TypeVar("T")


class UsageService:
    """Reads the ledger for callers. Each caller gets only the entries that it can see."""

    def __init__(self, changes: DirectoryChanges, usage: UsageStore) -> None:
        self._changes = changes
        self._usage = usage
        self._threads = ThreadPoolExecutor(THREADS, "antiphon-usage")

    @property
    def currency(self) -> str | None:
        """The currency of all costs; None if there is no price."""
        return find_currency(self._changes.directory.prices)

    def close(self) -> None:
        """Waits for running reads. Call it before the store is closed."""
        self._threads.shutdown(cancel_futures=True)

    async def build_report(
        self, actor: Actor, selection: EntrySelection, dimensions: Sequence[Dimension], max_groups: int
    ) -> LedgerReport:
        """Returns the sums over the visible entries of a selection, by `dimensions`. Lists at most
        `max_groups` groups. Raises NotFound and PermissionDenied."""
        visible_selection = self._restrict(actor, selection, dimensions)
        return await self.run_in_thread(lambda: self._usage.report(visible_selection, dimensions, max_groups))

    def open_entries(
        self, actor: Actor, selection: EntrySelection
    ) -> Callable[[int, EntryPosition | None], Sequence[Entry]]:
        """Returns a function that reads visible entries. Its parameters are the maximum number of entries,
        and the position after which it starts.

        The function blocks, so call it in `run_in_thread`. Raises NotFound and PermissionDenied.
        """
        if self._get_role(actor) is ProjectRole.VIEWER:
            raise PermissionDenied("a viewer sees the project's sums, but not single requests")
        visible_selection = self._restrict(actor, selection)
        return lambda max_entries, after: self._usage.load_entries(visible_selection, max_entries, after)

    async def run_in_thread(self, read: Callable[[], T]) -> T:
        """Runs a blocking read in a thread, and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    def _restrict(
        self, actor: Actor, selection: EntrySelection, dimensions: Iterable[Dimension] = ()
    ) -> EntrySelection:
        """Returns the selection, restricted to the entries that the actor can see."""
        role = self._get_role(actor)
        self._require_project(actor, selection.conditions)
        if role is ProjectRole.VIEWER:
            _require_impersonal((*dimensions, *(condition.dimension for condition in selection.conditions)))
        return replace(selection, conditions=(*selection.conditions, *_build_conditions(actor, role)))

    def _get_role(self, actor: Actor) -> ProjectRole | None:
        """Returns the role of the actor's user in the project; None if the actor is not a user. If the
        directory has no role of the user, derives one from the actor's rights."""
        if actor.kind is not ActorKind.USER:
            return None
        role = self._changes.policy.get_role(actor)
        return role or (ProjectRole.MEMBER if Right.GENERATE in actor.rights else ProjectRole.VIEWER)

    def _require_project(self, actor: Actor, conditions: Iterable[Condition]) -> None:
        """Raises NotFound if a condition names a project that the actor cannot see."""
        for condition in conditions:
            if condition.dimension is not EntryField.PROJECT or (actor.admin and condition.value is None):
                continue  # the operator can select entries without a project
            if actor.admin or condition.value != actor.project:
                find_by_id(self._changes.policy.list_projects(actor), condition.value or "", "project")
            if not actor.admin and condition.value != actor.project:
                raise PermissionDenied(
                    f"this key acts in {actor.project}: choose another of "
                    "its projects with the header X-PROJECT-ID",
                    param="project",
                )


def _build_conditions(actor: Actor, role: ProjectRole | None) -> tuple[Condition, ...]:
    """Returns the conditions that select the entries that the actor can see."""
    if actor.admin:
        return ()
    project = Condition(EntryField.PROJECT, actor.project)
    if role in (ProjectRole.OWNER, ProjectRole.VIEWER):
        return (project,)
    user = () if actor.user is None else (Condition(EntryField.USER, actor.user),)
    key = () if role is ProjectRole.MEMBER and user else (Condition(EntryField.KEY, actor.id),)
    return (project, *key, *user)


def _require_impersonal(dimensions: Iterable[Dimension]) -> None:
    """Raises PermissionDenied if a dimension is a tag or identifies a person."""
    for dimension in dimensions:
        if isinstance(dimension, Tag) or dimension in PERSONAL_FIELDS:
            raise PermissionDenied(f"a viewer sees the project's sums, but not by {dimension}", param="by")


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
