"""The interface of authentication: a verifier finds the actor of a credential."""

from typing import Protocol

from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import Project, ProjectRole, User
from antiphon.domain.values import Struct, Value
from antiphon.store.base import Directory, StoredKey

REFUSAL = "Incorrect API key provided, or none: send a valid key in the header Authorization: Bearer KEY"
"""The message for every refused credential. It does not tell why the credential is refused."""


class RequestedScope(Value, frozen=True):
    """The project and user for which a request wants to act. The credential must allow them."""

    project: str | None = None
    user: str | None = None
    takes_oldest: bool = False
    """Whether a token acts in the oldest of its user's projects if the request names none and the user has
    several."""


NO_SCOPE = RequestedScope()


class TokenVerifier(Protocol):
    """Verifies one kind of credential. A server asks its verifiers in order, until one recognises the token
    and accepts or refuses it."""

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        """Returns the actor of the token; None if the token is of another kind.

        Raises AuthenticationFailed if the token is revoked, expired or forged, and PermissionDenied if it
        does not allow the scope.
        """


class DirectoryIndex(Struct, frozen=True):
    """The keys, projects, users and roles of a directory, in dictionaries for fast look-ups."""

    keys: dict[bytes, StoredKey]
    """By digest."""
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
            {(member.project, member.user): member.role for member in directory.memberships},
        )

    def list_projects(self, user: str) -> list[str]:
        """Lists the projects of a user that are not archived."""
        return [project for project, member in self.roles if member == user and self.is_open(project)]

    def describe_project(self, id_: str) -> str:
        """Describes a project by its name and id. Only for callers who can see it."""
        project = self.projects.get(id_)
        return id_ if project is None or project.name == id_ else f"{project.name} ({id_})"

    def is_open(self, project: str | None) -> bool:
        """Whether a project exists and is not archived."""
        stored_project = self.projects.get(project or "")
        return stored_project is not None and stored_project.archived is None

    def is_active(self, user: str | None) -> bool:
        """Whether a user exists and is not disabled."""
        stored_user = self.users.get(user or "")
        return stored_user is not None and stored_user.disabled is None
