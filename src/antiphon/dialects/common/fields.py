"""Every request field of OpenAI's reference for these endpoints, with vLLM's common extras, and what Antiphon
does with it. The rows stand in `fields_generating`, `fields_messages` and `fields_others`."""

from antiphon.dialects.common.field_scopes import FieldScope
from antiphon.dialects.common.field_table import Field, FieldTable
from antiphon.dialects.common.fields_generating import GENERATING
from antiphon.dialects.common.fields_messages import MESSAGES
from antiphon.dialects.common.fields_others import OTHERS
from antiphon.dialects.common.fields_reasoning import REASONING

FIELDS: tuple[Field, ...] = (*GENERATING, *MESSAGES, *REASONING, *OTHERS)

BOOK = FieldTable(FIELDS, tuple(FieldScope), endpoints=(FieldScope.CHAT, FieldScope.TEXT))
TABLES = BOOK.tables
sift = BOOK.sift
