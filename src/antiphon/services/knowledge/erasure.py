"""Removes all knowledge tables and uploads of a project, for its owners and the operator."""

import asyncio

from antiphon.domain.identity import Actor
from antiphon.errors import PermissionDenied
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.services.changes import DirectoryChanges
from antiphon.services.knowledge.uploads import UploadFolder
from antiphon.services.policy import find_by_id
from antiphon.store.base import TenancyStore


class KnowledgeErasure:
    """Removes everything that a project stores in knowledge tables."""

    def __init__(
        self, changes: DirectoryChanges, tenancy: TenancyStore, index: KnowledgeIndex, uploads: UploadFolder
    ) -> None:
        self._changes = changes
        self._tenancy = tenancy
        self._index = index
        self._uploads = uploads

    async def erase(self, actor: Actor, project: str) -> int:
        """Removes all tables of a project, and all its uploaded files that are not in a table yet. Returns
        the number of removed tables. Damaged tables and tables of an archived project are removed too. Raises
        NotFound, PermissionDenied and KnowledgeUnavailable."""
        self._require_owner(actor, project)
        await asyncio.to_thread(self._remove_uploads, project)
        table_count = await self._index.delete_project_tables(project)

        def write_audit_entry() -> None:
            author = self._changes.attribute_to(actor)
            self._changes.update_directory(
                self._tenancy.note_erasure(project, {"tables": table_count}, author)
            )

        await self._changes.apply(write_audit_entry)
        return table_count

    def _require_owner(self, actor: Actor, project: str) -> None:
        policy = self._changes.policy
        find_by_id(policy.list_projects(actor), project, "project")
        if not (actor.admin or policy.is_owner(actor, project)):
            raise PermissionDenied("only an owner of the project can remove all its knowledge tables")

    def _remove_uploads(self, project: str) -> None:
        for order in self._uploads.list_orders():
            if order.project == project:
                self._uploads.remove(order.id)
