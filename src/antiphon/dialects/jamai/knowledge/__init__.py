"""Knowledge tables in JamAI Base's form: tables, rows, files and search, below /v2/gen_tables/knowledge."""

from antiphon.dialects.base import Endpoint
from antiphon.dialects.jamai.knowledge.embed_file import declare_files
from antiphon.dialects.jamai.knowledge.hybrid_search import declare_search
from antiphon.dialects.jamai.knowledge.rows import declare_rows
from antiphon.dialects.jamai.knowledge.tables import declare_tables


def declare_knowledge(max_file_bytes: int | None) -> tuple[Endpoint, ...]:
    """Declares the endpoints of knowledge tables. `max_file_bytes`: the largest file; None means the server's
    limit of bodies."""
    return (*declare_tables(), *declare_rows(), *declare_files(max_file_bytes), declare_search())
