"""Templates of reasoning models, and a constraint that sees what follows the thoughts."""

from antiphon.domain.request import Constraint
from antiphon.domain.values import replace
from antiphon_testing import ScriptedTokenEngine


class Constrained(ScriptedTokenEngine):
    """Takes every constraint and keeps none: its script says what it says."""

    def __init__(self, script, **changes):
        super().__init__(script, **changes)
        self.checked: list[Constraint] = []
        self.constraints: list[Constraint | None] = []

    async def check(self, constraint):
        self.checked.append(constraint)

    def generate(self, request):
        self.constraints.append(request.constraint)
        return super().generate(replace(request, constraint=None))


# Templates in the manner of families, written for these tests.
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HEAD = "{% if add_generation_prompt %}<|im_start|>assistant\n"
QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}" + HEAD + "{% if enable_thinking is defined and "
    "enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPENING = TURNS + HEAD + "<think>\n{% endif %}{# </think> #}"
NOT_AT_ALL = TURNS + HEAD + "{% endif %}"
