"""Verifies keys from memory, without a database.

Keys are found by the digest of the whole key. All invalid keys get the same message after the same work:
unknown, revoked and expired keys, and keys of an archived project or a disabled user. `ServiceKey` verifies
the one key of ANTIPHON_API_KEY.
"""

import hmac
import secrets
from collections.abc import Callable

from antiphon.auth.base import REFUSAL, DirectoryIndex, RequestedScope
from antiphon.auth.secrets import KEY, MARK, Pepper
from antiphon.domain.identity import EVERY_RIGHT, READER, SERVICE, WRITER, Actor, ActorKind
from antiphon.domain.tenancy import DEFAULT_PROJECT, Key, KeyKind, ProjectRole
from antiphon.errors import AuthenticationFailed, MissingParameter, PermissionDenied
from antiphon.store.base import Directory, StoredKey

UNKNOWN_KEY = StoredKey(Key("", KeyKind.SERVICE, "", 0, ""), bytes(32))
"""The key that an unknown key is compared with, so the check takes as long as for a known key."""


class Keyring:
    """All keys of the store, verified by digest."""

    def __init__(self, pepper: Pepper, clock: Callable[[], float]) -> None:
        """`clock` returns Unix seconds. The keyring knows no key before `learn` is called."""
        self._pepper = pepper
        self._clock = clock
        self._known = DirectoryIndex.from_directory(Directory())
        self._ended: frozenset[str] = frozenset()
        """Ids of keys that were revoked, or ended early by a rotation."""

    def learn(self, directory: Directory) -> None:
        """Replaces the directory."""
        self._ended = frozenset(
            stored_key.key.id for stored_key in directory.keys if self._is_ended(stored_key)
        )
        self._known = DirectoryIndex.from_directory(directory)

    def accepts(self, actor: Actor) -> bool:
        """Whether the running requests of a verified actor can continue.

        They end if the key is revoked, if the user is disabled or removed from the project, or if the project
        is archived. When a key expires, its running requests still finish.
        """
        if actor.id in self._ended or not self._known.is_open(actor.project):
            return False
        if actor.user is None:
            return True
        is_member = actor.admin or (actor.project, actor.user) in self._known.roles
        return is_member and self._known.is_active(actor.user)

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        """Returns the actor of a valid key, or None if the token does not begin like a key. Raises
        AuthenticationFailed and PermissionDenied."""
        if not token.startswith(MARK):
            return None
        digest = self._pepper.digest(token)
        stored_key = self._known.keys.get(digest, UNKNOWN_KEY)
        equal, valid = hmac.compare_digest(digest, stored_key.digest), self._is_valid(stored_key.key)
        if not equal or not valid or KEY.fullmatch(token) is None:
            raise AuthenticationFailed(REFUSAL)
        return self._build_actor(stored_key.key, scope)

    def build_user_actor(self, user: str, scope: RequestedScope, until: int) -> Actor:
        """Returns the actor for a user whom another verifier has established. The actor is valid until
        `until`, in Unix seconds. Raises the same errors as `verify`."""
        key = Key(user, KeyKind.ACCESS_TOKEN, "", 0, user, user=user, expires=until)
        if not self._is_valid(key):
            raise AuthenticationFailed(REFUSAL)
        return self._build_user(key, scope)

    def find_actor(self, id_: str, project: str, user: str | None) -> Actor | None:
        """Returns the actor of a key, by its id, for work that outlives its request; None if the key has
        ended. Users who sign on have their own id instead of a key's."""
        stored = next((each.key for each in self._known.keys.values() if each.key.id == id_), None)
        key = stored or Key(id_, KeyKind.ACCESS_TOKEN, "", 0, id_, user=id_)
        if not self._is_valid(key):
            return None
        try:
            return self._build_actor(key, RequestedScope(project, user))
        except (PermissionDenied, MissingParameter):
            return None

    def _is_ended(self, stored_key: StoredKey) -> bool:
        """Whether the key was revoked, or a rotation moved the key's end into the past."""
        key, before = stored_key.key, self._known.keys.get(stored_key.digest, stored_key).key
        if key.revoked is not None or key.expires is None:
            return key.revoked is not None
        is_moved = key.expires != before.expires or key.id in self._ended
        return is_moved and key.expires <= self._clock()

    def _is_valid(self, key: Key) -> bool:
        """Whether the key can be used now. Every condition is checked in every case, so the time taken
        reveals nothing."""
        now, known = self._clock(), self._known
        lasts = key.expires is None or key.expires > now
        is_open, is_active = known.is_open(key.project), known.is_active(key.user)
        is_open, is_active = is_open or key.project is None, is_active or key.user is None
        return (key.revoked is None) & lasts & is_open & is_active

    def _build_actor(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of a key, by the key's kind. Raises PermissionDenied if the key does not allow
        the scope."""
        if key.kind is KeyKind.ADMIN:
            return self._build_operator(key, scope)
        return (
            self._build_service(key, scope) if key.kind is KeyKind.SERVICE else self._build_user(key, scope)
        )

    def _build_operator(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of an operator's key. Raises PermissionDenied if the project or user of the scope
        is unknown."""
        project = scope.project or DEFAULT_PROJECT
        if not self._known.is_open(project):
            raise PermissionDenied(f"there is no project {project}", param="x-project-id")
        if scope.user is not None and not self._known.is_active(scope.user):
            raise PermissionDenied(f"there is no user {scope.user}", param="x-user-id")
        return Actor(ActorKind.ADMIN, key.id, project, scope.user, EVERY_RIGHT, key.grant, until=key.expires)

    def _build_service(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of a service key. Raises PermissionDenied if the scope names another project, or
        a user who is no active member."""
        project = key.project or DEFAULT_PROJECT
        if scope.project not in (None, project):
            raise PermissionDenied("this key is of another project", param="x-project-id")
        if scope.user is not None:
            role = self._known.roles.get((project, scope.user))
            if role is None or not self._known.is_active(scope.user):
                raise PermissionDenied(
                    f"this key speaks for members of its project alone, and {scope.user} is none",
                    param="x-user-id",
                )
        return Actor(
            ActorKind.SERVICE_KEY, key.id, project, scope.user, SERVICE, key.grant, True, key.expires
        )

    def _build_user(self, key: Key, scope: RequestedScope) -> Actor:
        """Returns the actor of an access token. Raises PermissionDenied if the scope names another user, or a
        project without the user."""
        user = key.user or ""
        if scope.user not in (None, user):
            raise PermissionDenied("this token is of another user", param="x-user-id")
        project = self._choose_project(key, user, scope.project)
        role = self._known.roles.get((project, user))
        if role is None:
            raise PermissionDenied(f"the user is no member of the project {project}", param="x-project-id")
        rights = READER if role is ProjectRole.VIEWER else WRITER
        bound = key.project is not None
        return Actor(ActorKind.USER, key.id, project, user, rights, key.grant, bound, key.expires)

    def _choose_project(self, key: Key, user: str, chosen: str | None) -> str:
        """Returns the project that a token acts in. Raises an error if the token cannot act in the chosen
        project, or if none is chosen and the user has several."""
        if key.project is not None:
            if chosen not in (None, key.project):
                raise PermissionDenied("this token is for another project", param="x-project-id")
            return key.project
        if chosen is not None:
            if not self._known.is_open(chosen):
                raise PermissionDenied(f"the user is no member of the project {chosen}", param="x-project-id")
            return chosen
        mine = self._known.list_projects(user)
        if not mine:
            raise PermissionDenied("the user is a member of no project", param="x-project-id")
        if len(mine) > 1:
            raise MissingParameter(
                f"the user is a member of several projects ({', '.join(sorted(mine)[:8])}); name one in the "
                "header X-PROJECT-ID",
                param="x-project-id",
            )
        return mine[0]


SERVICE_ACTOR = Actor(ActorKind.SERVICE_KEY, "service-key")
"""The bearer of the service key, without administrative rights."""


class ServiceKey:
    """Verifies one key by its keyed digest, whose secret is new in each process."""

    def __init__(self, key: str, is_only_key: bool = True) -> None:
        """`is_only_key`: whether there are no other keys. Then the projects and users that a request names
        are ignored."""
        self._alone = is_only_key
        self._pepper = Pepper(secrets.token_bytes(32))
        self._digest = self._pepper.digest(key)

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        """Returns the service actor if the token is the key, otherwise None. Tokens of the same length take
        the same time.

        Raises PermissionDenied if the request names another project, or a user.
        """
        if not hmac.compare_digest(self._digest, self._pepper.digest(token)):
            return None
        if not self._alone and (scope.project not in (None, SERVICE_ACTOR.project) or scope.user is not None):
            raise PermissionDenied(
                "the key of the settings speaks for the project default alone, and for no user",
                param="x-user-id" if scope.user is not None else "x-project-id",
            )
        return SERVICE_ACTOR
