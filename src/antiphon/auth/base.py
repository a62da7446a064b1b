"""The seam of authentication: a verifier turns a credential into an actor."""

from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import Project, ProjectRole, User
from antiphon.domain.values import Value
from antiphon.store.base import Directory, StoredKey

REFUSAL = "Incorrect API key provided, or none: send a valid key in the header Authorization: Bearer KEY"
"""The message for every credential that is not accepted."""


class RequestedScope(Value, frozen=True):
    """The project and user that a request asks to act for. The credential must allow them."""

    project: str | None = None
    user: str | None = None


NO_SCOPE = RequestedScope()


class TokenVerifier(Protocol):
    """One kind of credential. Verifiers are asked in order; the first that knows the token decides."""

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        """Returns the bearer of the token, or None when the token is not of this kind.

        Raises AuthenticationFailed when it is of this kind and bad (revoked, expired, forged),
        PermissionDenied when it may not act for the requested scope.
        """


@dataclass(frozen=True, slots=True)
class DirectoryIndex:
    """Lookups over a directory."""

    keys: dict[bytes, StoredKey]
    projects: dict[str, Project]
    users: dict[str, User]
    roles: dict[tuple[str, str], ProjectRole]
    """Roles by project and user."""

    @staticmethod
    def from_directory(directory: Directory) -> "DirectoryIndex":
        return DirectoryIndex(
            {stored_key.digest: stored_key for stored_key in directory.keys},
            {project.id: project for project in directory.projects},
            {user.id: user for user in directory.users},
            {(each.project, each.user): each.role for each in directory.memberships},
        )

    def list_projects(self, user: str) -> list[str]:
        """Projects of a user that are not archived."""
        return [project for project, member in self.roles if member == user and self.is_open(project)]

    def is_open(self, project: str | None) -> bool:
        """Whether a project exists and is not archived."""
        open_project = self.projects.get(project or "")
        return open_project is not None and open_project.archived is None

    def is_active(self, user: str | None) -> bool:
        """Whether a user exists and is not disabled."""
        active_user = self.users.get(user or "")
        return active_user is not None and active_user.disabled is None
