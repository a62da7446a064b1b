"""Limits and budgets: what callers can see and change, and the current status.

The operator sets any limit. An owner of a project limits keys that act only in that project: its service keys
and the access tokens bound to it. Owners can create other keys, so only a limit of the operator limits a
project as a whole. Every caller sees the limits of their own key, user and project.
"""

from collections.abc import Mapping

from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.limits import Limit, LimitStatus, Subject
from antiphon.domain.tenancy import Key
from antiphon.domain.values import replace
from antiphon.errors import PermissionDenied
from antiphon.limits.base import Limiter
from antiphon.services.changes import DirectoryChanges, replace_by_id
from antiphon.services.policy import (
    ONLY_OWNERS_LIMIT,
    LimitRequest,
    find_by_id,
    require_admin,
    require_countable,
    require_unique,
    require_valid,
)
from antiphon.store.base import RuleStore


class LimitService:
    """The limits of one server."""

    def __init__(self, changes: DirectoryChanges, rules: RuleStore, limiter: Limiter) -> None:
        self._changes = changes
        self._rules = rules
        self._limiter = limiter

    def list_limits(
        self, actor: Actor, subject: Subject | None = None, target: str | None = None
    ) -> list[Limit]:
        """Lists the limits that the actor can see, oldest first. `subject` and `target`: only limits with
        these values, unless None. All keys of a family share their limits."""
        families = self._changes.directory.build_families()
        return [
            limit
            for limit in self._changes.directory.limits
            if subject in (None, limit.subject)
            and (target is None or _has_target(families, limit, target))
            and self._can_see(actor, limit, families)
        ]

    def get_limit(self, actor: Actor, id_: str) -> Limit:
        """Returns a limit. Raises NotFound, also for a limit that the actor cannot see."""
        return find_by_id(self.list_limits(actor), id_, "limit")

    async def get_status(self, actor: Actor, id_: str) -> LimitStatus:
        """Returns the current status of a limit. Raises NotFound and LimitsUnavailable."""
        (status,) = await self._limiter.read_status([self.get_limit(actor, id_)])
        return status

    async def add(self, actor: Actor, request: LimitRequest) -> Limit:
        """Adds a limit. The limit applies to requests that start later."""
        require_valid(request)

        def add() -> Limit:
            self._require_target(actor, request)
            limit = request.to_limit(self._changes.make_id("limit"), request.target, self._changes.now())
            families = self._changes.directory.build_families()
            siblings = [
                sibling
                for sibling in self._changes.directory.limits
                if sibling.subject is limit.subject and _has_target(families, sibling, limit.target)
            ]
            require_unique(limit, siblings)
            revision = self._rules.add_limit(limit, self._changes.attribute_to(actor))
            self._changes.update_directory(revision, limits=(*self._changes.directory.limits, limit))
            return limit

        return await self._changes.apply(add)

    async def change(self, actor: Actor, id_: str, amount: int | None, note: str | None) -> Limit:
        """Changes the amount and the note, unless they are None. The usage that was counted is not
        changed."""

        def update() -> Limit:
            limit = self._get_changeable(actor, id_)
            require_countable(limit.measure, limit.amount if amount is None else amount)
            changed_limit = replace(
                limit,
                amount=limit.amount if amount is None else amount,
                note=limit.note if note is None else note,
            )
            revision = self._rules.change_limit(changed_limit, self._changes.attribute_to(actor))
            self._changes.update_directory(
                revision, limits=replace_by_id(self._changes.directory.limits, changed_limit)
            )
            return changed_limit

        return await self._changes.apply(update)

    async def remove(self, actor: Actor, id_: str) -> None:
        """Removes a limit. It no longer applies to any request."""

        def remove() -> None:
            limit = self._get_changeable(actor, id_)
            revision = self._rules.remove_limit(limit.id, self._changes.attribute_to(actor))
            remaining_limits = tuple(
                stored for stored in self._changes.directory.limits if stored.id != limit.id
            )
            self._changes.update_directory(revision, limits=remaining_limits)

        await self._changes.apply(remove)

    # --- permissions ---

    def _can_see(self, actor: Actor, limit: Limit, families: Mapping[str, str]) -> bool:
        """Whether the actor can see the limit. `families` maps the id of each key to its family."""
        if actor.admin:
            return True
        match limit.subject:
            case Subject.KEY:
                return (
                    _has_target(families, limit, actor.id) or self._find_key(actor, limit.target) is not None
                )
            case Subject.USER:
                return limit.target == actor.user and actor.kind is not ActorKind.SERVICE_KEY
            case Subject.PROJECT:
                return limit.target == actor.project and actor.kind is ActorKind.USER
            case Subject.MODEL:
                return False

    def _find_key(self, actor: Actor, id_: str) -> Key | None:
        """Returns a key that the actor can see, or can limit as an owner of its project. Returns None for any
        other key."""
        policy = self._changes.policy
        for stored_key in self._changes.directory.keys:
            if stored_key.key.id == id_:
                is_owner = stored_key.key.project is not None and policy.is_owner(
                    actor, stored_key.key.project
                )
                return stored_key.key if is_owner or policy.can_see(actor, stored_key.key) else None
        return None

    def _require_target(self, actor: Actor, request: LimitRequest | Limit) -> None:
        """Raises NotFound if the actor cannot see the target, and PermissionDenied if the actor cannot limit
        it."""
        directory, policy = self._changes.directory, self._changes.policy
        match request.subject:
            case Subject.KEY:
                key = self._find_key(actor, request.target)
                find_by_id([] if key is None else [key], request.target, "key")
                if not actor.admin and not (key is not None and policy.is_owner(actor, key.project)):
                    raise PermissionDenied(ONLY_OWNERS_LIMIT)
                return
            case Subject.PROJECT:
                find_by_id(policy.list_projects(actor), request.target, "project")
            case Subject.USER:
                find_by_id(
                    directory.users if actor.admin else policy.list_users(actor), request.target, "user"
                )
            case Subject.MODEL:
                pass
        require_admin(actor)

    def _get_changeable(self, actor: Actor, id_: str) -> Limit:
        """Returns a limit that the actor can change. Raises NotFound and PermissionDenied."""
        limit = self.get_limit(actor, id_)
        if not actor.admin:
            self._require_target(actor, limit)
        return limit


def _has_target(families: Mapping[str, str], limit: Limit, target: str) -> bool:
    """Whether the limit applies to the target. A key's limit applies to the key's whole family."""
    if limit.subject is not Subject.KEY:
        return limit.target == target
    return families.get(limit.target, limit.target) == families.get(target, target)
