"""The API of knowledge tables: tables, documents, chunks and search, below /v1/knowledge."""

from antiphon.dialects.base import Endpoint
from antiphon.http.knowledge.chunks import declare_chunks
from antiphon.http.knowledge.documents import declare_documents
from antiphon.http.knowledge.tables import declare_tables
from antiphon.http.state import AppState


def list_knowledge_endpoints(app_state: AppState) -> tuple[Endpoint, ...]:
    """Lists all endpoints of knowledge tables. The list is empty if the server stores no tables."""
    if app_state.knowledge is None:
        return ()
    return (*declare_tables(), *declare_documents(app_state.knowledge.max_file_bytes), *declare_chunks())
