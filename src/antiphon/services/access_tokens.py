"""Access tokens of the calling user, for dialects whose products have such tokens. `services.tenancy` makes
the changes and checks the permissions."""

from collections.abc import Callable, Sequence

from antiphon.auth.secrets import Pepper
from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import Key, KeyKind, Project
from antiphon.errors import NotFound
from antiphon.services.changes import DirectoryChanges
from antiphon.services.policy import NO_EXPIRY, KeyRequest
from antiphon.services.tenancy import TenancyService


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
