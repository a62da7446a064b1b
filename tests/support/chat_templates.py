"""Chat templates like those of four model families, written for these tests, and helpers."""

from collections.abc import Mapping

from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation
from antiphon.rendering.template.chat_template import ChatTemplate, SpecialTokens, digest_proof, prove
from antiphon_testing import FakeClock
from antiphon_testing.scripted_token_engine import CHATML
from antiphon_testing.toy_model import CONTROLS

LLAMA = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
MISTRAL = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('users and assistants must take turns, beginning with a user') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {%- if loop.first and system is defined %}
            {{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for message in messages %}"
    "<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{{ message.content.strip() }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
FRAMING = (
    "{% for message in messages %}{{ '<|' ~ message.name ~ '|>' }}{{ message.content }}<|eot_id|>{% endfor %}"
)
"""A template that inserts caller text between the two halves of a control token's name."""

FAMILIES = {"chatml": CHATML, "llama": LLAMA, "mistral": MISTRAL, "gemma": GEMMA}
SPECIAL = SpecialTokens(CONTROLS, "<s>", "</s>")


def create_template(source: str, *names: str) -> ChatTemplate:
    return ChatTemplate(source, SpecialTokens((*CONTROLS, *names), "<s>", "</s>"))


def build_conversation(*texts: str, system: str | None = None) -> Conversation:
    """Builds a conversation in which user and assistant take turns."""
    turns = [Message((Role.USER, Role.ASSISTANT)[index % 2], text) for index, text in enumerate(texts)]
    return Conversation((*([Message(Role.SYSTEM, system)] if system is not None else ()), *turns))


def render_marked(source: str, conversation: Conversation, *names: str) -> str:
    """Renders the prompt with each control token in ⟦ ⟧."""
    pieces = create_template(source, *names).render(conversation, FakeClock())
    return "".join(f"⟦{piece.text}⟧" if piece.control else piece.text for piece in pieces)


async def prove_here(payload: Mapping[str, object]) -> None:
    """Proves a template in this process, for tests that do not test isolation. A good one is proved once."""
    if (digest := digest_proof(payload)) not in _PROVED:
        prove(payload)
        _PROVED.add(digest)


_PROVED = set[str]()
