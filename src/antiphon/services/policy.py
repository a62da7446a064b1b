"""Decides which projects, users and keys an actor can see and change, and which limits are valid.

It changes nothing itself. The checks of limits check no permissions.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from antiphon.auth.base import DirectoryIndex
from antiphon.domain.identity import Actor, ActorKind, is_within
from antiphon.domain.limits import Limit, Measure, Subject, Window, explain_too_large
from antiphon.domain.tenancy import EVERYTHING, Grant, Key, KeyKind, Project, ProjectRole, User
from antiphon.domain.values import Struct, asdict
from antiphon.errors import Conflict, InvalidValue, MissingParameter, NotFound, PermissionDenied
from antiphon.store.base import Directory

MAX_LIMITS = 50
"""The most limits of one target. Every request checks each of them."""

MAX_KEYS = 1_000
"""The most valid access tokens of a user, and the most valid service keys of a project. The operator can
create more."""

ONLY_OWNERS_LIMIT = "only an owner of a project can limit keys, and only keys that belong to this project"

NO_EXPIRY = 2**62
"""A time in Unix seconds that is later than the end of any key. It stands for the end of a key that never
expires."""


class LimitRequest(Struct, frozen=True):
    """A requested limit, with the fields of `domain.limits.Limit`. The target is empty for a limit of a new
    key."""

    subject: Subject
    target: str
    measure: Measure
    amount: int
    window: Window | None = None
    models: str | None = None
    note: str = ""

    def to_limit(self, id_: str, target: str, created: int) -> Limit:
        """Returns the limit with an id, a target and a time of creation."""
        return Limit(**{**asdict(self), "id": id_, "target": target, "created": created})


def require_valid(request: LimitRequest, path: str = "") -> None:
    """Raises a RequestError if the limit is invalid. `path` is the limit's path in the request body, such as
    `limits[0].`."""
    window, models = f"{path}window", f"{path}models"
    if request.measure is Measure.CONCURRENT and request.window is not None:
        raise InvalidValue(
            f"concurrent requests are not counted over a time: leave {window} out", param=window
        )
    if request.measure is not Measure.CONCURRENT and request.window is None:
        raise MissingParameter(f"{window} is missing", param=window)
    require_countable(request.measure, request.amount, path)
    if request.subject is Subject.MODEL and request.models is not None:
        raise InvalidValue(f"a limit of a model already names it: leave {models} out", param=models)


def require_countable(measure: Measure, amount: int, path: str = "") -> None:
    """Raises InvalidValue if the amount is too large to be counted exactly."""
    if (problem := explain_too_large(measure, amount)) is not None:
        raise InvalidValue(problem, param=f"{path}amount")


def require_all_valid(limits: Sequence[LimitRequest]) -> None:
    """Raises a RequestError if a limit of a new key is invalid, or if two of them limit the same quantity."""
    paths: dict[tuple[object, ...], str] = {}
    for number, limit in enumerate(limits):
        path = f"limits[{number}]"
        require_valid(limit, f"{path}.")
        if (earlier_path := paths.setdefault(_get_quantity(limit), path)) != path:
            raise InvalidValue(
                f"{path} and {earlier_path} limit the same quantity; send only one of them", param=path
            )


def require_unique(limit: Limit, existing: Sequence[Limit]) -> None:
    """Raises Conflict if the target already has a limit of the same quantity, or too many limits. `existing`:
    the limits of the target."""
    for existing_limit in existing:
        if _get_quantity(existing_limit) == _get_quantity(limit):
            raise Conflict(f"there is such a limit already: change the amount of {existing_limit.id}")
    if len(existing) >= MAX_LIMITS:
        raise Conflict(f"the {limit.subject} has {MAX_LIMITS} limits, which is the most: remove one first")


def _get_quantity(limit: Limit | LimitRequest) -> tuple[object, ...]:
    """Returns the measure, window and models of a limit. Two limits of one target with the same values would
    limit the same quantity."""
    return limit.measure, limit.window, limit.models


class KeyRequest(Struct, frozen=True):
    """A requested key."""

    kind: KeyKind
    project: str | None = None
    user: str | None = None
    grant: Grant = EVERYTHING
    expires: int | None = None
    note: str = ""
    limits: tuple[LimitRequest, ...] = ()
    """Limits of the new key. Their target is empty, because the key has no id yet."""


class AccessPolicy:
    """The access rules for one directory. Methods raise NotFound for an object that the actor cannot see, as
    for an object that does not exist."""

    def __init__(self, directory: Directory, now: int, index: DirectoryIndex | None = None) -> None:
        """`index`: the index of the directory, if it exists already."""
        self._directory = directory
        self._index = index or DirectoryIndex.from_directory(directory)
        self._now = now

    def describe_project(self, id_: str) -> str:
        """Describes a project that the actor can see by its name and id."""
        return self._index.describe_project(id_)

    def list_projects(self, actor: Actor) -> list[Project]:
        """Lists the projects that the actor can see: all for the operator, one for a key bound to a project,
        the user's projects for others."""
        own_projects = [] if actor.is_bound else self._index.list_projects(actor.user or "")
        return [
            project
            for project in self._directory.projects
            if actor.admin or project.id in (*own_projects, actor.project)
        ]

    def list_users(self, actor: Actor) -> list[User]:
        """Lists all users for the operator, and only the actor's own user for others."""
        return [user for user in self._directory.users if actor.admin or user.id == actor.user]

    def list_keys(self, actor: Actor) -> list[Key]:
        """Lists the keys that the actor can see."""
        return [stored_key.key for stored_key in self._directory.keys if self.can_see(actor, stored_key.key)]

    def get_key(self, actor: Actor, id_: str) -> Key:
        """Returns a key. Raises NotFound, also for a key that the actor cannot see."""
        keys = (stored_key.key for stored_key in self._directory.keys if stored_key.key.id == id_)
        return find_by_id((key for key in keys if self.can_see(actor, key)), id_, "key")

    def require_owner(self, actor: Actor, project: str) -> None:
        """Raises NotFound if the actor cannot see the project, and PermissionDenied if the actor cannot
        change its members."""
        find_by_id(self.list_projects(actor), project, "project")
        if not (actor.admin or self.is_owner(actor, project)):
            raise PermissionDenied("only an owner of the project may change its members")
        self.require_unrestricted_key(actor)

    def require_unrestricted_key(self, actor: Actor) -> None:
        """Raises PermissionDenied if the actor's key is restricted to models or paths. Such a key cannot
        change members, because members are not restricted. The operator's keys are exempt."""
        if not actor.admin and actor.grant != EVERYTHING:
            raise PermissionDenied(
                "this key is restricted to certain models or paths, so it cannot change members: use a key "
                "without such a restriction"
            )

    def require_known_user(self, actor: Actor, user: str) -> None:
        """Raises NotFound if the user is a member of none of the actor's projects.

        A user with several projects has to name a project in each request, so strangers must not be able to
        add users.
        """
        visible_projects = {project.id for project in self.list_projects(actor)}
        if not actor.admin and not any(
            member == user and project in visible_projects for project, member in self._index.roles
        ):
            raise NotFound(f"there is no user {user[:100]}")

    def is_owner(self, actor: Actor, project: str | None) -> bool:
        """Whether the actor is an owner of the project and acts in it."""
        if actor.kind is not ActorKind.USER or actor.project != project:
            return False
        return self._index.roles.get((actor.project, actor.user or "")) is ProjectRole.OWNER

    def get_role(self, actor: Actor) -> ProjectRole | None:
        """Returns the role of the actor's user in the project of the request."""
        return self._index.roles.get((actor.project, actor.user or ""))

    def can_see(self, actor: Actor, key: Key) -> bool:
        """Whether the actor can see the key. An actor can change every key that it can see."""
        if actor.admin:
            return True
        if actor.is_bound and key.project != actor.project:
            return False
        if key.kind is KeyKind.ACCESS_TOKEN:
            return key.user == actor.user is not None
        return key.kind is KeyKind.SERVICE and self.is_owner(actor, key.project)

    def get_active_key(self, actor: Actor, id_: str) -> Key:
        """Returns a visible key that has not ended. Raises NotFound, or InvalidValue if the key has ended."""
        key = self.get_key(actor, id_)
        if key.revoked is not None or (key.expires is not None and key.expires <= self._now):
            raise InvalidValue("the key has ended: create a new one", param="id")
        return key

    def find_original_expiry(self, key: Key) -> int | None:
        """Returns the time at which a key would end if it had not been rotated. The latest successor of the
        key has that time.

        Raises Conflict if a successor is valid, because a repeated rotation would leave a second key that
        nobody knows. Raises InvalidValue if the time has passed.
        """
        keys = (stored_key.key for stored_key in self._directory.keys)
        family = sorted(
            (member for member in keys if member.family_id == key.family_id),
            key=lambda member: (member.family is not None, member.created, member.id),
        )
        # If there is a newer key, `key` was rotated, and its `expires` is the end of the overlap.
        successors = family[family.index(key) + 1 :]
        valid_successors = [
            successor
            for successor in successors
            if successor.revoked is None and (successor.expires or NO_EXPIRY) > self._now
        ]
        if valid_successors:
            raise Conflict(
                f"{key.id} was rotated already, and its successor {valid_successors[-1].id} is valid: rotate "
                "that successor, or revoke it first if nobody has its secret",
                param="id",
            )
        expires = successors[-1].expires if successors else key.expires
        if expires is not None and expires <= self._now:
            raise InvalidValue("the key has ended: create a new one", param="id")
        return expires

    def require_other_operator_key(self, key: Key, key_after: Key | None = None) -> None:
        """Raises InvalidValue if the operator would have no unrestricted, permanent key after the change.
        `key_after`: the key after the change; None if it is revoked."""
        keys_after = [stored_key.key for stored_key in self._directory.keys if stored_key.key.id != key.id]
        keys_after += [] if key_after is None else [key_after]
        are_unrestricted = (
            remaining.kind is KeyKind.ADMIN
            and remaining.revoked is None
            and remaining.expires is None
            and remaining.grant == EVERYTHING
            for remaining in keys_after
        )
        if key.kind is KeyKind.ADMIN and not any(are_unrestricted):
            raise InvalidValue(
                "this is the operator's last key without restrictions "
                "and without an end: create another first",
                param="id",
            )

    def require_within_rights(self, actor: Actor, key: Key | KeyRequest) -> None:
        """Raises PermissionDenied if the key would have more models, endpoints, projects or time than the
        actor's key."""
        if not is_within(key.grant, actor.grant):
            raise PermissionDenied(
                "a key cannot have more models or endpoints than the key that creates it: name fewer"
            )
        if actor.is_bound and key.project != actor.project:
            raise PermissionDenied(
                f"this key is only for the project {self.describe_project(actor.project)}: "
                "set project to its id"
            )
        if actor.expires is not None and (key.expires is None or key.expires > actor.expires):
            raise PermissionDenied(
                f"this key ends at {actor.expires}: set expires_at to this time or an earlier one"
            )

    def require_creatable(self, actor: Actor, request: KeyRequest) -> None:
        """Raises a RequestError if the requested key is invalid, or if the actor cannot create it."""
        self.require_within_rights(actor, request)
        if request.kind is KeyKind.ADMIN:
            require_admin(actor)
            _require_absent(request, "project", "user")
        elif request.kind is KeyKind.SERVICE:
            _require_absent(request, "user")
            project = _require_value(request.project, "project")
            find_by_id(self.list_projects(actor), project, "project")
            if not (actor.admin or self.is_owner(actor, project)):
                raise PermissionDenied("only an owner of the project may create keys for it")
            if not self._index.is_open(project):
                raise InvalidValue("the project is archived: no key of it is accepted", param="project")
        else:
            user = _require_value(request.user, "user")
            if not actor.admin and user != actor.user:
                raise PermissionDenied("an access token can be created by its own user or by the operator")
            if not self._index.is_active(find_by_id(self._directory.users, user, "user").id):
                raise InvalidValue("the user is disabled: no token of theirs is accepted", param="user")
            if request.project is not None and request.project not in self._index.list_projects(user):
                raise NotFound(f"{user} is not a member of {request.project}", param="project")
        if request.expires is not None and request.expires <= self._now:
            raise InvalidValue("the key would end before it begins", param="expires_at")
        self.require_key_quota(actor, request)
        if request.limits and not (actor.admin or self.is_owner(actor, request.project)):
            raise PermissionDenied(ONLY_OWNERS_LIMIT, param="limits")
        require_all_valid(request.limits)

    def require_open_owner(self, key: Key) -> None:
        """Raises InvalidValue if the project of the key is archived, or its user is disabled. No new secret
        of such a key would be accepted."""
        if key.project is not None and not self._index.is_open(key.project):
            raise InvalidValue("the project is archived: no key of it is accepted", param="id")
        if key.user is not None and not self._index.is_active(key.user):
            raise InvalidValue("the user is disabled: no token of theirs is accepted", param="id")

    def require_key_quota(self, actor: Actor, request: KeyRequest | Key) -> None:
        """Raises Conflict if the user or project of the key has MAX_KEYS valid keys of this kind. There is
        such a limit because every process has all keys in memory. The operator is exempt."""
        if actor.admin:
            return
        same_kind = (
            stored_key.key
            for stored_key in self._directory.keys
            if (stored_key.key.kind, stored_key.key.user) == (request.kind, request.user)
            and (request.kind is KeyKind.ACCESS_TOKEN or stored_key.key.project == request.project)
        )
        valid_keys = (
            key for key in same_kind if key.revoked is None and (key.expires or NO_EXPIRY) > self._now
        )
        if sum(1 for _ in valid_keys) >= MAX_KEYS:
            owner = request.user or request.project
            raise Conflict(f"{owner} has {MAX_KEYS} keys of this kind already: revoke some first")


class HasId(Protocol):
    """An object with an id."""

    @property
    def id(self) -> str: ...


Identified = TypeVar("Identified", bound=HasId)


def find_by_id(items: Iterable[Identified], id_: str, noun: str) -> Identified:
    """Returns the item with an id. Raises NotFound."""
    for item in items:
        if item.id == id_:
            return item
    raise NotFound(f"there is no {noun} {id_[:100]}")


def _require_value(value: str | None, name: str) -> str:
    """Returns the value. Raises MissingParameter if it is None."""
    if value is None:
        raise MissingParameter(f"{name} is missing", param=name)
    return value


def _require_absent(request: KeyRequest, *names: str) -> None:
    """Raises InvalidValue if the request has a value for one of the named fields."""
    for name in names:
        if getattr(request, name) is not None:
            raise InvalidValue(f"a key of kind {request.kind} has no {name}; leave it out", param=name)


def require_admin(actor: Actor) -> None:
    """Raises PermissionDenied unless the actor is the operator."""
    if not actor.admin:
        raise PermissionDenied("only the operator's key may do this")
