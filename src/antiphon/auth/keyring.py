"""Verifies keys in memory, without a database.

A key is found by its digest. An invalid key can be unknown, revoked or expired, or belong to an archived
project or a disabled user. The message and the duration are the same in all these cases, so they reveal
nothing. `SettingsKey` verifies the single key of ANTIPHON_API_KEY.
"""

import hmac
import secrets
from collections.abc import Callable

from antiphon.auth.base import NO_SCOPE, REFUSAL, DirectoryIndex, RequestedScope
from antiphon.auth.secrets import KEY, PREFIX, Pepper
from antiphon.domain.identity import (
    EVERY_RIGHT,
    READER_RIGHTS,
    SERVICE_RIGHTS,
    WRITER_RIGHTS,
    Actor,
    ActorKind,
)
from antiphon.domain.tenancy import DEFAULT_PROJECT, Key, KeyKind, ProjectRole
from antiphon.errors import AuthenticationFailed, MissingParameter, PermissionDenied
from antiphon.store.base import Directory, StoredKey

UNKNOWN_KEY = StoredKey(Key("", KeyKind.SERVICE, "", 0, ""), bytes(32))
"""The key that an unknown token is compared with, so that the check takes as long as for a known key."""
MAX_REMEMBERED = 1 << 14
"""The most combinations of key, project and user that are remembered as accepted."""
NEVER = 1 << 40
"""The end of a key that does not expire, in Unix seconds, so that its check takes as long as for others."""


class Keyring:
    """The `TokenVerifier` of the keys in the store."""

    def __init__(self, pepper: Pepper, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds. Before the first call of `replace_directory`, no key is known."""
        self._pepper = pepper
        self._clock = clock
        self._index = DirectoryIndex.from_directory(Directory())
        self._actors: dict[bytes, Actor] = {}
        """The actors of valid keys by digest, for requests that name no project and no user. A new directory
        drops them."""
        self._accepted: set[tuple[str, str, str | None]] = set()
        """The id, project and user of actors that `accepts` accepts. A new directory drops them."""
        self._ended_ids: frozenset[str] = frozenset()
        """Ids of keys that were revoked or that a rotation has ended."""

    def replace_directory(self, directory: Directory) -> None:
        """Uses the keys, users and projects of this directory from now on."""
        self._ended_ids = frozenset(
            stored_key.key.id for stored_key in directory.keys if self._is_ended(stored_key)
        )
        self._index = DirectoryIndex.from_directory(directory)
        # Last, so that an actor of the earlier directory is only ever stored in a dropped dictionary.
        self._actors, self._accepted = {}, set()

    def accepts(self, actor: Actor) -> bool:
        """Whether the running requests of a verified actor can continue.

        They end if the key is revoked, if the user is disabled or removed from the project, or if the project
        is archived. When a key expires, its running requests can finish.
        """
        accepted, identity = self._accepted, (actor.id, actor.project, actor.user)
        if identity in accepted:
            return True
        index = self._index
        is_accepted = actor.id not in self._ended_ids and index.is_open(actor.project)
        if actor.user is not None:
            is_member = actor.admin or (actor.project, actor.user) in index.roles
            is_accepted = is_accepted and is_member and index.is_active(actor.user)
        if is_accepted and len(accepted) < MAX_REMEMBERED:
            accepted.add(identity)
        return is_accepted

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        """Returns the actor of a valid key; None if the token does not start like a key. Raises
        AuthenticationFailed, PermissionDenied, and MissingParameter if the scope lacks a project."""
        if not token.startswith(PREFIX):
            return None
        digest, actors = self._pepper.digest(token), self._actors
        actor = actors.get(digest) if scope is NO_SCOPE else None
        if actor is not None and (actor.expires is None or actor.expires > self._clock()):
            return actor
        stored_key = self._index.keys.get(digest, UNKNOWN_KEY)
        is_equal, is_valid = hmac.compare_digest(digest, stored_key.digest), self._is_valid(stored_key.key)
        if not is_equal or not is_valid or KEY.fullmatch(token) is None:
            raise AuthenticationFailed(REFUSAL)
        actor = self._build_actor(stored_key.key, scope)
        if scope is NO_SCOPE:
            actors[digest] = actor
        return actor

    def build_user_actor(self, user: str, scope: RequestedScope, until: int) -> Actor:
        """Returns the actor of a user whose token another verifier has checked. `until`: the token's end in
        Unix seconds. Raises the errors of `verify`."""
        key = Key(user, KeyKind.ACCESS_TOKEN, "", 0, user, user=user, expires=until)
        if not self._is_valid(key):
            raise AuthenticationFailed(
                REFUSAL, cause="the token's user is disabled, or the token has expired"
            )
        return self._build_user(key, scope)

    def find_actor(self, id_: str, project: str, user: str | None) -> Actor | None:
        """Returns the current actor of a key, by the key's id, for work that continues after its request;
        None if the key has ended. For a user of single sign-on, the id is the user's."""
        keys = (stored_key.key for stored_key in self._index.keys.values())
        matching_key = next((key for key in keys if key.id == id_), None)
        key = matching_key or Key(id_, KeyKind.ACCESS_TOKEN, "", 0, id_, user=id_)
        if not self._is_valid(key):
            return None
        try:
            return self._build_actor(key, RequestedScope(project, user))
        except (PermissionDenied, MissingParameter):
            return None

    def _is_ended(self, stored_key: StoredKey) -> bool:
        """Whether the key was revoked, or a rotation set its end to a time that has passed. Compares with the
        directory in memory, which is still the earlier one."""
        key, key_before = stored_key.key, self._index.keys.get(stored_key.digest, stored_key).key
        if key.revoked is not None or key.expires is None:
            return key.revoked is not None
        was_rotated = key.expires != key_before.expires or key.id in self._ended_ids
        return was_rotated and key.expires <= self._clock()

    def _is_valid(self, key: Key) -> bool:
        """Whether the key can be used now. Evaluates every condition, so that the duration does not reveal
        which one failed."""
        now, index = self._clock(), self._index
        is_unexpired = (NEVER if key.expires is None else key.expires) > now
        is_open, is_active = index.is_open(key.project), index.is_active(key.user)
        is_open, is_active = is_open or key.project is None, is_active or key.user is None
        return (key.revoked is None) & is_unexpired & is_open & is_active

    def _build_actor(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of a key. Raises PermissionDenied if the key does not allow the scope."""
        if key.kind is KeyKind.ADMIN:
            return self._build_operator(key, scope)
        return (
            self._build_service(key, scope) if key.kind is KeyKind.SERVICE else self._build_user(key, scope)
        )

    def _build_operator(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of an operator's key. Raises PermissionDenied if the project or user of the scope
        is unknown."""
        project = scope.project or DEFAULT_PROJECT
        if not self._index.is_open(project):
            raise PermissionDenied(f"there is no project {project}", param="x-project-id")
        if scope.user is not None and not self._index.is_active(scope.user):
            raise PermissionDenied(f"there is no user {scope.user}", param="x-user-id")
        return Actor(
            ActorKind.ADMIN, key.id, project, scope.user, EVERY_RIGHT, key.grant, expires=key.expires
        )

    def _build_service(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of a service key. Raises PermissionDenied if the scope has another project, or a
        user who is not an active member."""
        project = key.project or DEFAULT_PROJECT
        if scope.project not in (None, project):
            raise PermissionDenied("this key belongs to another project", param="x-project-id")
        if scope.user is not None:
            role = self._index.roles.get((project, scope.user))
            if role is None or not self._index.is_active(scope.user):
                raise PermissionDenied(
                    f"this key can act only for members of its project, and {scope.user} is not one",
                    param="x-user-id",
                )
        return Actor(
            ActorKind.SERVICE_KEY, key.id, project, scope.user, SERVICE_RIGHTS, key.grant, True, key.expires
        )

    def _build_user(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of an access token. Raises PermissionDenied if the scope has another user, or a
        project of which the user is not a member."""
        user = key.user or ""
        if scope.user not in (None, user):
            raise PermissionDenied("this token belongs to another user", param="x-user-id")
        project = self._choose_project(key, user, scope)
        role = self._index.roles.get((project, user))
        if role is None:
            raise PermissionDenied(f"the user is not a member of the project {project}", param="x-project-id")
        rights = READER_RIGHTS if role is ProjectRole.VIEWER else WRITER_RIGHTS
        is_bound = key.project is not None
        return Actor(ActorKind.USER, key.id, project, user, rights, key.grant, is_bound, key.expires)

    def _choose_project(self, key: Key, user: str, scope: RequestedScope) -> str:
        """Returns the project in which a token acts. Raises PermissionDenied if the token does not allow the
        requested one, and MissingParameter if the request names none, the user has several projects, and the
        scope does not take the oldest."""
        requested = scope.project
        if key.project is not None:
            if requested not in (None, key.project):
                raise PermissionDenied("this token is for another project", param="x-project-id")
            return key.project
        if requested is not None:
            if not self._index.is_open(requested):
                raise PermissionDenied(
                    f"the user is not a member of the project {requested}",
                    param="x-project-id",
                )
            return requested
        projects = self._index.list_projects(user)
        if not projects:
            raise PermissionDenied("the user is not a member of any project", param="x-project-id")
        if len(projects) > 1 and not scope.takes_oldest:
            shown = ", ".join(map(self._index.describe_project, sorted(projects)[:8]))
            raise MissingParameter(
                f"the user is a member of several projects: {shown}; name the id of one in the header "
                "X-PROJECT-ID",
                param="x-project-id",
            )
        return min(projects, key=lambda id_: (self._index.projects[id_].created, id_))


SERVICE_ACTOR = Actor(ActorKind.SERVICE_KEY, "service-key")
"""The actor of ANTIPHON_API_KEY, without administrative rights."""


class SettingsKey:
    """The `TokenVerifier` of the key in ANTIPHON_API_KEY. It compares digests, whose secret is new in each
    process."""

    def __init__(self, key: str, is_only_key: bool = True) -> None:
        """`is_only_key`: whether the server has no other keys, so that the project and user of a request are
        ignored."""
        self._is_only_key = is_only_key
        self._pepper = Pepper(secrets.token_bytes(32))
        self._digest = self._pepper.digest(key)

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        """Returns the service actor if the token is the key; None if it is not. Takes the same time for all
        tokens of one length.

        Raises PermissionDenied if the server has other keys, and the request names another project or a user.
        """
        if not hmac.compare_digest(self._digest, self._pepper.digest(token)):
            return None
        if not self._is_only_key and (
            scope.project not in (None, SERVICE_ACTOR.project) or scope.user is not None
        ):
            raise PermissionDenied(
                "the key of the settings can act only for the project default, and for no user",
                param="x-user-id" if scope.user is not None else "x-project-id",
            )
        return SERVICE_ACTOR
