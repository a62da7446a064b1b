"""Reports over the ledger for callers. They run in threads, for which projects take turns.

The operator sees the whole ledger, and an owner sees the whole project. A viewer sees the sums of the
project, but not for each person. A member and a service key see only their own usage. A project that the
actor cannot see raises NotFound.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from antiphon.domain.context import Clock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
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
from antiphon.domain.tenancy import ProjectRole
from antiphon.domain.values import replace
from antiphon.errors import PermissionDenied
from antiphon.services.changes import DirectoryChanges
from antiphon.services.policy import find_by_id
from antiphon.store.base import UsageStore

TURNS = QueueLimits(at_once=2, queue=4_096, queue_per_actor=256, item_name="reports")
"""The most reads of all projects at the same time. One long read must not delay all others, and many reads
must not use every connection of the store."""

OPERATOR_TURNS = replace(TURNS, at_once=1)
"""The operator has a thread of its own, so no project's reads delay it."""

PERSONAL_FIELDS = frozenset(
    {EntryField.USER, EntryField.KEY, EntryField.END_USER, EntryField.REQUEST_ID, EntryField.PARENT}
)
"""Fields that identify a person."""

T = TypeVar("T")


class UsageService:
    """Reads the ledger for callers. Each caller gets only the entries that it can see."""

    def __init__(self, changes: DirectoryChanges, usage: UsageStore, clock: Clock) -> None:
        self._changes = changes
        self._usage = usage
        self._clock = clock
        self._turns = FairSemaphore(TURNS)
        self._operator_turns = FairSemaphore(OPERATOR_TURNS)
        self._threads = ThreadPoolExecutor(TURNS.at_once + OPERATOR_TURNS.at_once, "antiphon-usage")

    @property
    def currency(self) -> str | None:
        """The currency of all costs; None if there is no price."""
        return find_currency(self._changes.directory.prices)

    def close(self) -> None:
        """Waits for running reads. Call it before the store is closed."""
        self._threads.shutdown(cancel_futures=True)

    def open_report(
        self, actor: Actor, selection: EntrySelection, dimensions: Sequence[Dimension], max_groups: int
    ) -> Callable[[], LedgerReport]:
        """Returns a function that reads the sums over the visible entries of a selection, by `dimensions`. It
        lists at most `max_groups` groups.

        The function blocks, so call it in `run_in_thread`. Raises NotFound and PermissionDenied.
        """
        visible_selection = self._restrict(actor, selection, dimensions)
        return lambda: self._usage.report(visible_selection, dimensions, max_groups)

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

    async def run_in_thread(self, actor: Actor, read: Callable[[], T]) -> T:
        """Runs a blocking read in a thread when it is the turn of the actor's project, and returns its
        result. Raises Overloaded or EngineBusy if too many reads wait."""
        turns = self._operator_turns if actor.admin else self._turns
        await turns.acquire(actor.project, self._clock)
        running = asyncio.get_running_loop().run_in_executor(self._threads, read)

        def give_turn_back(ended: asyncio.Future[T]) -> None:
            turns.release(actor.project, self._clock)
            if not ended.cancelled():
                ended.exception()  # marks it as seen: the caller can have left

        # The thread goes on if the caller leaves. Until it ends, its turn belongs to the caller's project.
        running.add_done_callback(give_turn_back)
        return await asyncio.shield(running)

    def _restrict(
        self, actor: Actor, selection: EntrySelection, dimensions: Iterable[Dimension] = ()
    ) -> EntrySelection:
        """Returns the selection, restricted to the entries that the actor can see. Raises PermissionDenied if
        a viewer names a tag, or a field that identifies a person."""
        role = self._get_role(actor)
        self._require_project(actor, selection.conditions)
        if role is ProjectRole.VIEWER:
            for dimension in (*dimensions, *(condition.dimension for condition in selection.conditions)):
                if isinstance(dimension, Tag) or dimension in PERSONAL_FIELDS:
                    raise PermissionDenied(
                        f"a viewer sees the project's sums, but not by {dimension}", param="by"
                    )
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
                    f"this key acts in {self._changes.policy.describe_project(actor.project)}: "
                    "choose another of its projects with the header X-PROJECT-ID",
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
