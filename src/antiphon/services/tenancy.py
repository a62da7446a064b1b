"""Changes of projects, users, members and keys.

A change is in the store and in the keyring before the request is answered. The operator's key can change
everything. An owner of a project changes its members and its service keys. Every user creates and revokes
their own access tokens. No caller can create a key with more permissions than their own. Everything that the
actor cannot see is reported as not found. `AccessTokens` is for dialects whose products have access tokens.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from antiphon.auth.secrets import Pepper, extract_prefix, generate_key
from antiphon.domain.identity import Actor
from antiphon.domain.limits import Limit, Subject
from antiphon.domain.tenancy import (
    AuditEntry,
    AuditSelection,
    Key,
    KeyKind,
    Membership,
    Project,
    ProjectRole,
    User,
    fold_email,
)
from antiphon.domain.values import Struct, replace
from antiphon.errors import InvalidValue, NotFound
from antiphon.services.changes import DirectoryChanges, replace_by_id
from antiphon.services.policy import NO_EXPIRY, KeyRequest, find_by_id, require_admin
from antiphon.store.base import StoredKey, TenancyStore


class IssuedKey(Struct, frozen=True):
    """A new key with its secret. The secret is never shown again."""

    key: Key
    secret: str
    limits: tuple[Limit, ...] = ()


class TenancyService:
    """Projects, users, memberships and keys of one server."""

    def __init__(self, changes: DirectoryChanges, tenancy: TenancyStore, pepper: Pepper) -> None:
        self._changes = changes
        self._tenancy = tenancy
        self._pepper = pepper

    # --- projects and users ---

    def list_projects(self, actor: Actor) -> list[Project]:
        """Lists the projects that the actor can see."""
        return self._changes.policy.list_projects(actor)

    def list_users(self, actor: Actor) -> list[User]:
        """Lists the users that the actor can see."""
        return self._changes.policy.list_users(actor)

    def get_project(self, actor: Actor, id_: str) -> Project:
        """Returns a project. Raises NotFound, also for a project that the actor cannot see."""
        return find_by_id(self.list_projects(actor), id_, "project")

    def get_user(self, actor: Actor, id_: str) -> User:
        """Returns a user. Raises NotFound, also for a user that the actor cannot see."""
        return find_by_id(self.list_users(actor), id_, "user")

    async def add_project(self, actor: Actor, name: str, note: str) -> Project:
        """Adds a project. Only for the operator."""
        require_admin(actor)
        project = Project(self._changes.make_id("proj"), name, self._changes.now(), note=note)

        def add() -> Project:
            revision = self._tenancy.add_project(project, self._changes.attribute_to(actor))
            self._changes.update_directory(revision, projects=(*self._changes.directory.projects, project))
            return project

        return await self._changes.apply(add)

    async def change_project(
        self, actor: Actor, id_: str, name: str | None, note: str | None, archived: bool | None
    ) -> Project:
        """Changes the values that are not None. Only for the operator. Raises NotFound, and InvalidValue if
        the default project would be archived."""
        require_admin(actor)

        def update() -> Project:
            project = find_by_id(self._changes.directory.projects, id_, "project")
            if archived and id_ == "default":
                raise InvalidValue("the project default cannot be archived", param="archived")
            changed_project = replace(
                project,
                name=project.name if name is None else name,
                note=project.note if note is None else note,
                archived=self._changes.resolve_switch_time(project.archived, archived),
            )
            revision = self._tenancy.change_project(changed_project, self._changes.attribute_to(actor))
            self._changes.update_directory(
                revision, projects=replace_by_id(self._changes.directory.projects, changed_project)
            )
            return changed_project

        return await self._changes.apply(update)

    async def add_user(self, actor: Actor, name: str, email: str | None, note: str) -> User:
        """Adds a user. Only for the operator. The email address is stored in the form of `fold_email`."""
        require_admin(actor)
        user = _normalize_email(
            User(self._changes.make_id("user"), name, self._changes.now(), email, note=note)
        )

        def add() -> User:
            revision = self._tenancy.add_user(user, self._changes.attribute_to(actor))
            self._changes.update_directory(revision, users=(*self._changes.directory.users, user))
            return user

        return await self._changes.apply(add)

    async def change_user(
        self, actor: Actor, id_: str, change: Callable[[User], User], disabled: bool | None = None
    ) -> User:
        """Changes a user. `change` receives the current user and returns the changed one. `disabled`:
        whether the keys of the user are refused from now on; None changes nothing. Only for the operator."""
        require_admin(actor)

        def update() -> User:
            user = find_by_id(self._changes.directory.users, id_, "user")
            disabled_since = self._changes.resolve_switch_time(user.disabled, disabled)
            changed_user = _normalize_email(replace(change(user), disabled=disabled_since))
            revision = self._tenancy.change_user(changed_user, self._changes.attribute_to(actor))
            self._changes.update_directory(
                revision, users=replace_by_id(self._changes.directory.users, changed_user)
            )
            return changed_user

        return await self._changes.apply(update)

    # --- members ---

    def list_members(self, actor: Actor, project: str) -> list[Membership]:
        """Lists the members of a visible project, ordered by user id. Raises NotFound."""
        find_by_id(self.list_projects(actor), project, "project")
        members = (member for member in self._changes.directory.memberships if member.project == project)
        return sorted(members, key=lambda member: member.user)

    async def put_member(self, actor: Actor, project: str, user: str, role: ProjectRole) -> Membership:
        """Adds a user to a project with a role, or changes the role of a member. Raises NotFound and
        PermissionDenied."""

        def add() -> Membership:
            self._changes.policy.require_owner(actor, project)
            self._changes.policy.require_known_user(actor, user)
            membership = Membership(project, user, role, self._changes.now())
            revision = self._tenancy.put_membership(membership, self._changes.attribute_to(actor))
            self._changes.update_directory(
                revision, memberships=(*self._list_memberships_without(project, user), membership)
            )
            return membership

        return await self._changes.apply(add)

    async def remove_member(self, actor: Actor, project: str, user: str) -> None:
        """Removes a user from a project. Users can remove themselves; an owner or the operator can remove
        others."""

        def remove() -> None:
            if user == actor.user:
                self._changes.policy.require_unrestricted_key(actor)
            else:
                self._changes.policy.require_owner(actor, project)
            find_by_id(self.list_projects(actor), project, "project")
            revision = self._tenancy.remove_membership(project, user, self._changes.attribute_to(actor))
            self._changes.update_directory(
                revision, memberships=self._list_memberships_without(project, user)
            )

        await self._changes.apply(remove)

    # --- keys ---

    def list_keys(self, actor: Actor) -> list[Key]:
        """Lists the keys that the actor can see."""
        return self._changes.policy.list_keys(actor)

    def get_key(self, actor: Actor, id_: str) -> Key:
        """Returns a key. Raises NotFound, also for a key that the actor cannot see."""
        return self._changes.policy.get_key(actor, id_)

    def list_limits(self, keys: Iterable[Key]) -> Mapping[str, Sequence[Limit]]:
        """Returns the limits of each key, oldest first, by the key's id. All keys of a family share their
        limits."""
        directory = self._changes.directory
        families = directory.build_families()
        limits: dict[str, list[Limit]] = {}
        for limit in directory.limits:
            if limit.subject is Subject.KEY:
                limits.setdefault(families.get(limit.target, limit.target), []).append(limit)
        return {key.id: limits.get(key.family_id, []) for key in keys}

    async def add_key(self, actor: Actor, request: KeyRequest) -> IssuedKey:
        """Creates a key. Raises a RequestError if the key is invalid, or if the actor cannot create it."""

        def add() -> IssuedKey:
            self._changes.policy.require_creatable(actor, request)
            secret = generate_key()
            key = Key(
                id=self._changes.make_id("key"),
                kind=request.kind,
                prefix=extract_prefix(secret),
                created=self._changes.now(),
                creator=actor.id,
                project=request.project,
                user=request.user,
                grant=request.grant,
                expires=request.expires,
                note=request.note,
            )
            limits = tuple(
                limit.to_limit(self._changes.make_id("limit"), key.id, self._changes.now())
                for limit in request.limits
            )
            stored_key = StoredKey(key, self._pepper.digest(secret))
            revision = self._tenancy.add_key(stored_key, self._changes.attribute_to(actor), limits)
            self._update_keys(revision, new_keys=(stored_key,), limits=limits)
            return IssuedKey(key, secret, limits)

        return await self._changes.apply(add)

    async def change_key(
        self,
        actor: Actor,
        id_: str,
        change: Callable[[Key], Key],
    ) -> Key:
        """Changes a key. `change` receives the current key and returns the changed one. Raises NotFound,
        InvalidValue if the key has ended, and PermissionDenied if it would get more permissions than the
        actor's key."""

        def update() -> Key:
            key = self._changes.policy.get_active_key(actor, id_)
            changed_key = change(key)
            self._changes.policy.require_within_rights(actor, changed_key)
            self._changes.policy.require_other_operator_key(key, changed_key)
            revision = self._tenancy.change_key(changed_key, self._changes.attribute_to(actor))
            self._update_keys(revision, changed_key)
            return changed_key

        return await self._changes.apply(update)

    async def revoke_key(self, actor: Actor, id_: str) -> Key:
        """Revokes a key at once. Does not change a key that is already revoked. Raises NotFound, and
        InvalidValue for the operator's last unrestricted key."""

        def revoke() -> Key:
            key = self.get_key(actor, id_)
            if key.revoked is None:
                self._changes.policy.require_other_operator_key(key)
                key = replace(key, revoked=self._changes.now())
                self._update_keys(self._tenancy.change_key(key, self._changes.attribute_to(actor)), key)
            return key

        return await self._changes.apply(revoke)

    async def rotate_key(self, actor: Actor, id_: str, overlap: int) -> IssuedKey:
        """Creates a successor with the rights and the end of a key. The old key ends after at most `overlap`
        seconds.

        The limits move to the new key and count the usage of both keys. Raises Conflict if a successor is
        valid.
        """

        def rotate() -> IssuedKey:
            expiry = self._changes.policy.find_original_expiry(self._changes.policy.get_key(actor, id_))
            old_key = self._changes.policy.get_active_key(actor, id_)
            self._changes.policy.require_open_owner(old_key)
            if overlap:
                self._changes.policy.require_key_quota(actor, old_key)
            secret = generate_key()
            successor = replace(
                old_key,
                id=self._changes.make_id("key"),
                prefix=extract_prefix(secret),
                created=self._changes.now(),
                creator=actor.id,
                expires=expiry,
                family=old_key.family_id,
            )
            self._changes.policy.require_within_rights(actor, successor)
            overlap_end = self._changes.now() + overlap
            expiring_key = replace(
                old_key,
                expires=overlap_end if old_key.expires is None else min(overlap_end, old_key.expires),
            )
            stored_key = StoredKey(successor, self._pepper.digest(secret))
            # The limits of the family move to the successor. Their ids stay: the usage is counted by id.
            families = self._changes.directory.build_families()
            limits = tuple(
                replace(limit, target=successor.id)
                for limit in self._changes.directory.limits
                if limit.subject is Subject.KEY
                and families.get(limit.target, limit.target) == successor.family
            )
            revision = self._tenancy.rotate_key(
                expiring_key, stored_key, limits, self._changes.attribute_to(actor)
            )
            self._update_keys(revision, expiring_key, new_keys=(stored_key,), limits=limits)
            return IssuedKey(successor, secret, limits)

        return await self._changes.apply(rotate)

    async def list_audit(
        self, actor: Actor, limit: int, before: int | None, selection: AuditSelection
    ) -> Sequence[AuditEntry]:
        """Lists the selected audit entries, the latest first. Only for the operator."""
        require_admin(actor)
        return await self._changes.run_in_thread(
            lambda: self._tenancy.load_audit_entries(limit, before, selection)
        )

    # --- internals ---

    def _update_keys(
        self, revision: int, *keys: Key, new_keys: tuple[StoredKey, ...] = (), limits: tuple[Limit, ...] = ()
    ) -> None:
        """Updates the directory. `keys`: keys that were changed. `limits`: limits that were changed or
        added."""
        changed_keys = {key.id: key for key in keys}
        keys_after = (
            replace(stored, key=changed_keys[stored.key.id]) if stored.key.id in changed_keys else stored
            for stored in self._changes.directory.keys
        )
        limits_after = self._changes.directory.limits
        for limit in limits:
            limits_after = replace_by_id(limits_after, limit)
        self._changes.update_directory(revision, keys=(*keys_after, *new_keys), limits=limits_after)

    def _list_memberships_without(self, project: str, user: str) -> tuple[Membership, ...]:
        """Returns all memberships except the one of this user in this project."""
        return tuple(
            membership
            for membership in self._changes.directory.memberships
            if (membership.project, membership.user) != (project, user)
        )


def _normalize_email(user: User) -> User:
    """Returns the user with the email address in the form in which addresses are compared."""
    return user if user.email is None else replace(user, email=fold_email(user.email))


class AccessTokens:
    """Lists and changes access tokens. Users see their own tokens. The operator sees the tokens of all users,
    or of the user that the request names."""

    def __init__(self, tenants: TenancyService, changes: DirectoryChanges, pepper: Pepper) -> None:
        self._tenants = tenants
        self._changes = changes
        self._pepper = pepper

    def list_projects(self, actor: Actor) -> Sequence[Project]:
        """Lists the projects that the actor can see."""
        return self._tenants.list_projects(actor)

    def list_tokens(self, actor: Actor) -> Sequence[Key]:
        """Lists the actor's tokens that have not ended, oldest first."""
        now = self._changes.now()
        return [
            key
            for key in self._tenants.list_keys(actor)
            if key.kind is KeyKind.ACCESS_TOKEN
            and actor.user in (None, key.user)
            and key.revoked is None
            and (key.expires or NO_EXPIRY) > now
        ]

    async def add_token(
        self, actor: Actor, name: str, project: str | None, expires: int | None
    ) -> tuple[Key, str]:
        """Creates a token of the actor's user, with at most the actor's own permissions. Returns the key and
        the token. `expires`: Unix seconds; None means never. Raises a RequestError."""
        if project is None and actor.is_bound:
            project = actor.project
        request = KeyRequest(KeyKind.ACCESS_TOKEN, project, actor.user, actor.grant, expires, name)
        issued = await self._tenants.add_key(actor, request)
        return issued.key, issued.secret

    async def change_token(self, actor: Actor, token: str, change: Callable[[Key], Key]) -> Key:
        """Changes a token. `token`: its id or its secret. Raises NotFound."""
        return await self._tenants.change_key(actor, self._find_id(actor, token), change)

    async def revoke_token(self, actor: Actor, token: str) -> None:
        """Revokes a token. `token`: its id or its secret. Raises NotFound."""
        await self._tenants.revoke_key(actor, self._find_id(actor, token))

    def _find_id(self, actor: Actor, token: str) -> str:
        """Returns the id of one of the actor's tokens. `token`: its id or its secret. Raises NotFound."""
        digest = self._pepper.digest(token)
        matching_ids = {stored.key.id for stored in self._changes.directory.keys if stored.digest == digest}
        for key in self.list_tokens(actor):
            if key.id == token or key.id in matching_ids:
                return key.id
        raise NotFound("there is no such token, or it is not yours", param="query.pat_id")
