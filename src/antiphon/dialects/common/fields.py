"""Every request field of OpenAI's reference for these endpoints, with vLLM's common extras, and what Antiphon
does with it. The rows stand in `fields_generating`, `fields_messages` and `fields_others`."""

from antiphon.dialects.common.fields_generating import GENERATING
from antiphon.dialects.common.fields_messages import MESSAGES
from antiphon.dialects.common.fields_others import OTHERS
from antiphon.dialects.common.fields_reasoning import REASONING
from antiphon.dialects.common.places import Place
from antiphon.dialects.common.table import Book, Field

FIELDS: tuple[Field, ...] = (*GENERATING, *MESSAGES, *REASONING, *OTHERS)

BOOK = Book(FIELDS, tuple(Place), endpoints=(Place.CHAT, Place.TEXT))
TABLES = BOOK.tables
sift = BOOK.sift
