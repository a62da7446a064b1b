"""The seam of authentication: a verifier turns a credential into an actor."""

from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.identity import Actor
from antiphon.domain.tenancy import Project, Role, User
from antiphon.domain.values import Value
from antiphon.store.base import Directory, KeptKey

REFUSAL = "Incorrect API key provided, or none: send a valid key in the header Authorization: Bearer KEY"
"""What is said of every credential that is not accepted, whoever finds it so."""


class RequestedScope(Value, frozen=True):
    """For whom a request says that it speaks, beside its credential: a choice among what the credential may
    speak for, never more."""

    project: str | None = None
    user: str | None = None


NO_SCOPE = RequestedScope()


class TokenVerifier(Protocol):
    """One kind of credential. Verifiers are asked in order; the first that knows the token decides."""

    async def verify(self, token: str, scope: RequestedScope) -> Actor | None:
        """The bearer of the token; None when the token is not of this kind.

        Raises AuthenticationFailed when it is of this kind and bad (revoked, expired, forged),
        PermissionDenied when it may not speak for what was chosen.
        """


@dataclass(frozen=True, slots=True)
class DirectoryIndex:
    """A directory as it is asked."""

    keys: dict[bytes, KeptKey]
    projects: dict[str, Project]
    users: dict[str, User]
    roles: dict[tuple[str, str], Role]
    """By project and user."""

    @staticmethod
    def of(directory: Directory) -> "DirectoryIndex":
        return DirectoryIndex(
            {kept.digest: kept for kept in directory.keys},
            {project.id: project for project in directory.projects},
            {user.id: user for user in directory.users},
            {(each.project, each.user): each.role for each in directory.memberships},
        )

    def list_projects(self, user: str) -> list[str]:
        """Those that a user is a member of and that are not archived."""
        return [project for project, member in self.roles if member == user and self.is_open(project)]

    def is_open(self, project: str | None) -> bool:
        """Whether a project is there and not archived."""
        found = self.projects.get(project or "")
        return found is not None and found.archived is None

    def is_active(self, user: str | None) -> bool:
        """Whether a user is there and not disabled."""
        found = self.users.get(user or "")
        return found is not None and found.disabled is None
