"""Files of knowledge tables in JamAI Base's form. One request adds a file and waits until search finds it."""

from msgspec import Struct

from antiphon.dialects.base import MULTIPART, Answer, Endpoint, Request, RequestBody, Response, Services
from antiphon.dialects.common.multipart import FORM_OVERHEAD, BinaryText, read_form
from antiphon.dialects.jamai.knowledge.endpoints import (
    TABLE_ID,
    answer_done,
    build_context,
    declare,
    encode,
    name_fields,
)
from antiphon.dialects.jamai.wire_types import Done
from antiphon.domain.identity import Right
from antiphon.errors import MissingParameter
from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.knowledge import FileUpload

PATH = "/embed_file"

SIZE, OVERLAP = 2000, 200
"""JamAI's default size and overlap of chunks, in characters."""


class JamaiUploadForm(Struct, frozen=True, kw_only=True):
    """A file to add. Sizes are in characters."""

    file: BinaryText
    table_id: str
    chunk_size: int = SIZE
    chunk_overlap: int = OVERLAP


def declare_files(max_file_bytes: int | None) -> tuple[Endpoint, Endpoint]:
    """Declares the endpoints of files. `max_file_bytes`: None means the server's limit of bodies."""
    limit = None if max_file_bytes is None else max_file_bytes + FORM_OVERHEAD
    form = RequestBody(MULTIPART, limit, JamaiUploadForm)
    return (
        declare(
            "POST",
            PATH,
            embed_file,
            "Add a file, and wait until it is ready",
            Right.WRITE,
            body=form,
            answer=Done,
            ends_with_caller=True,
        ),
        declare("OPTIONS", PATH, list_types, "Media types of files", Right.READ, answer=list[str]),
    )


async def embed_file(request: Request, services: Services) -> Answer:
    """Adds a file, and answers when its chunks can be found."""
    form = read_form(request)
    form.require_known(*JamaiUploadForm.__struct_fields__)
    file, table = form.require_file("file"), form.fields.get(TABLE_ID)
    if not table:
        raise MissingParameter(f"{TABLE_ID} is missing; name a knowledge table", param=TABLE_ID)
    size, overlap = form.read_integer("chunk_size"), form.read_integer("chunk_overlap")
    upload = FileUpload(
        file.name,
        file.content,
        file.media_type,
        SIZE if size is None else size,
        OVERLAP if overlap is None else overlap,
        SizeUnit.CHARACTERS,
    )
    context = build_context(request, services, PATH)
    with name_fields({"file_name": "file"}):
        await services.knowledge.add_document(table, upload, context, wait=True)
    return answer_done()


async def list_types(_request: Request, services: Services) -> Answer:
    """Lists the accepted media types, also in the header Accept, as JamAI does."""
    types = services.knowledge.media_types
    accepted_types = ", ".join(types).encode()
    return Response(encode(types), headers=((b"allow", b"POST, OPTIONS"), (b"accept", accepted_types)))
