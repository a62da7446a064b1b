"""Chat templates that write calls as those of model families do, written for these tests: short, with the
family's marks and its spaces."""

HEAD = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
TAIL = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LIST = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
EACH = "{% for call in message.tool_calls or [] %}{% set call = call.function %}"
PAIRS = "{% for key, value in call.arguments.items() %}"
RAW = "{{ value if value is string else value | tojson }}"


def write_template(calls: str) -> str:
    """Returns a template with this text for the calls of a message."""
    return LIST + HEAD + calls + TAIL


HERMES = write_template(
    EACH + '{% if not loop.first %}{{ "\\n" }}{% endif %}<tool_call>\n{"name": "{{ call.name }}", '
    '"arguments": {{ call.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
QWEN_CODER = write_template(
    EACH
    + '{% if not loop.first %}{{ "\\n" }}{% endif %}<tool_call>\n<function={{ call.name }}>\n'
    + PAIRS
    + "<parameter={{ key }}>\n"
    + RAW
    + "{{ '\\n' }}</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"
)
SEED = write_template(
    EACH
    + '{% if not loop.first %}{{ "\\n" }}{% endif %}<seed:tool_call>\n<function={{ call.name }}>\n'
    + PAIRS
    + "<parameter={{ key }}>"
    + RAW
    + "</parameter>\n{% endfor %}</function>\n</seed:tool_call>{% endfor %}"
)
GLM = write_template(
    EACH
    + "{{ '\\n' }}<tool_call>{{ call.name }}\n"
    + PAIRS
    + "<arg_key>{{ key }}</arg_key>\n<arg_value>"
    + RAW
    + "</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
)
GLM_IN_ONE_LINE = write_template(
    EACH
    + "<tool_call>{{ call.name }}"
    + PAIRS
    + "<arg_key>{{ key }}</arg_key><arg_value>"
    + RAW
    + "</arg_value>{% endfor %}</tool_call>{% endfor %}"
)
MINIMAX = write_template(
    "{% if message.tool_calls %}<minimax:tool_call>\n"
    + EACH
    + '<invoke name="{{ call.name }}">\n'
    + PAIRS
    + '<parameter name="{{ key }}">'
    + RAW
    + "</parameter>\n{% endfor %}</invoke>\n{% endfor %}"
    "</minimax:tool_call>{% endif %}"
)
DEEPSEEK_MARKUP = write_template(
    "{% if message.tool_calls %}<｜DSML｜function_calls>\n"
    + EACH
    + '<｜DSML｜invoke name="{{ call.name }}">\n'
    + PAIRS
    + "<｜DSML｜parameter name=\"{{ key }}\" string=\"{{ 'true' if value is string else 'false' }}\">"
    + RAW
    + "</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜function_calls>{% endif %}"
)
DEEPSEEK = write_template(
    "{% if message.tool_calls %}<｜tool▁calls▁begin｜>"
    + EACH
    + "<｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>"
    "{{ call.arguments }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}"
)
DEEPSEEK_FENCED = write_template(
    "{% if message.tool_calls %}<｜tool▁calls▁begin｜>"
    + EACH
    + "{% if not loop.first %}{{ '\\n' }}{% endif %}"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.name }}\n```json\n{{ call.arguments }}\n```"
    "<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>{% endif %}"
)
MISTRAL = write_template(
    "{% if message.tool_calls %}[TOOL_CALLS] [" + EACH + '{% if not loop.first %}, {% endif %}{"name": '
    '"{{ call.name }}", "arguments": {{ call.arguments | tojson }}}{% endfor %}]{% endif %}'
)
MISTRAL_HEADED = write_template(
    EACH + "[TOOL_CALLS]{{ call.name }}[ARGS]{{ call.arguments | tojson }}{% endfor %}"
)
LLAMA = write_template(
    EACH
    + '{{ \'{"name": "\' + call.name + \'", "parameters": \' }}{{ call.arguments | tojson }}}{% endfor %}'
)
KIMI = write_template(
    "{% if message.tool_calls %}<|tool_calls_section_begin|>"
    "{% for call in message.tool_calls %}<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>"
    "{{ call.function.arguments | tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}"
)
LITERAL = (
    '{% macro literal(value) %}{% if value is string %}<|"|>{{ value }}<|"|>{% elif value is mapping %}'
    "{{ '{' }}{% for key, each in value | dictsort %}{{ ',' if not loop.first }}{{ key }}:{{ literal(each) }}"
    "{% endfor %}{{ '}' }}{% elif value is iterable %}[{% for each in value %}{{ '' if loop.first else ',' }}"
    "{{ literal(each) }}{% endfor %}]{% else %}{{ value | tojson }}{% endif %}{% endmacro %}"
)
GEMMA = LITERAL + write_template(
    EACH + "<|tool_call>call:{{ call.name }}{{ '{' }}{% for key, value in call.arguments | dictsort %}"
    "{{ ',' if not loop.first }}{{ key }}:{{ literal(value) }}{% endfor %}{{ '}' }}<tool_call|>{% endfor %}"
)
CALLS_IN_PYTHON = (
    "["
    + EACH
    + "{{ '' if loop.first else ', ' }}{{ call.name }}("
    + PAIRS
    + "{{ '' if loop.first else ', ' }}"
    "{{ key }}={{ {true: 'True', false: 'False', none: 'None'}[value] if value is boolean or value is none "
    "else value | tojson }}{% endfor %}){% endfor %}]"
)
PYTHON = "{# [func_name1(name=value)] #}" + write_template(
    "{% if message.tool_calls %}" + CALLS_IN_PYTHON + "{% endif %}"
)
PYTHON_IN_MARKS = write_template(
    "{% if message.tool_calls %}<|tool_call_start|>" + CALLS_IN_PYTHON + "<|tool_call_end|>{% endif %}"
)
GRANITE = "{# <|start_of_role|> #}" + write_template(
    "{% if message.tool_calls %}<|tool_call|>["
    + EACH
    + '{% if not loop.first %}, {% endif %}{"name": "{{ call.name }}", "arguments": '
    "{{ call.arguments | tojson }}}{% endfor %}]{% endif %}"
)

TEMPLATES = {
    "hermes": HERMES,
    "qwen-coder": QWEN_CODER,
    "seed": SEED,
    "glm": GLM,
    "glm-4.7": GLM_IN_ONE_LINE,
    "minimax": MINIMAX,
    "deepseek-markup": DEEPSEEK_MARKUP,
    "deepseek": DEEPSEEK,
    "deepseek-fenced": DEEPSEEK_FENCED,
    "mistral": MISTRAL,
    "mistral-headed": MISTRAL_HEADED,
    "llama": LLAMA,
    "kimi": KIMI,
    "granite": GRANITE,
    "gemma": GEMMA,
    "python": PYTHON,
    "python-in-marks": PYTHON_IN_MARKS,
}
"""The templates by family; several of one family have a suffix."""
