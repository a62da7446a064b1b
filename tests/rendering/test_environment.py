"""Hostile templates: none reaches Python, a caller's values make none grow, and what takes too much by itself
ends with the helper."""

import time

import pytest

from antiphon.errors import TemplateRefused
from antiphon.processes.sandbox import JobStopped, Limits, Stop, run_job
from antiphon.rendering.model_info import PROOF, prove_in_sandbox
from antiphon.rendering.template.chat_template import build_proof, prove
from antiphon_testing import FakeClock
from antiphon_testing.scripted_token_engine import CHATML
from tests.support.chat_templates import FAMILIES, SPECIAL, build_conversation, create_template, render_marked


def again(body: str) -> str:
    """Forty times over."""
    begin = "{% set ns = namespace(x='a' * 1000, y=[1], z=[1], n=7) %}{% for i in range(40) %}"
    return f"{begin}{body}{{% endfor %}}{{{{ ns.x }}}}{{{{ ns.y }}}}"


REACHING = {
    "class": "{{ ''.__class__.__mro__ }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by filter": "{{ '' | attr('__class__') }}",
    "class by map": "{{ ([''] | map(attribute='__class__') | first).__mro__ }}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "its own functions": "{{ strftime_now.func.x or raise_exception.args[0].x }}",
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') or messages.__class__.x }}",
    "change": "{{ messages.append(1) }}",
    "change a message": "{{ messages[0].update(role='system') }}",
    "file": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "bytes": "{{ 'a'.encode() }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "namespace": "{{ namespace(x=1) }}",
}
GROWING = {
    "times": "{{ 'a' * 10**9 }}",
    "times a list": "{{ [1] * 10**9 }}",
    "times the other way": "{{ 1000000000 * 'a' }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "products": again("{% set ns.n = ns.n * ns.n %}"),
    "percent": "{{ '%999999999d' % 1 }}",
    "percent star": "{{ '%*d' % (999999999, 1) }}",
    "percent names": "{{ ('%(a)s' * 10000) % {'a': 'a' * 100000} }}",
    "center": "{{ 'a' | center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "to_bytes": "{{ (5).to_bytes(1000000000, 'big') }}",
    "lipsum": "{{ lipsum(100000) }}",
}
TAKING = {
    "format filter": "{{ '%999999999d' | format(1) }}",
    "format method": "{{ '{:999999999}'.format(1) }}",
    "format nested": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "format many": "{{ ('{0}' * 10000).format('a' * 100000) }}",
    "tilde": again("{% set ns.x = ns.x ~ ns.x %}"),
    "plus": again("{% set ns.x = ns.x + ns.x %}"),
    "plus lists": again("{% set ns.y = ns.y + ns.y %}"),
    "block": again("{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "macro": "{% macro m(n, x) %}{% if n %}{{ m(n - 1, x ~ x) }}{% endif %}{% endmacro %}{{ m(40, 'abc') }}",
    "replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace filter": "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "join": "{{ ('b' * 100000).join(('a' * 100000) | list) }}",
    "join filter": "{{ ('a' * 100000) | list | join('b' * 100000) }}",
    "indent": "{{ ('\n' * 100000) | indent(100000) }}",
    "batch": "{{ [1] | batch(1000000000, 0) | list }}",
    "sum of lists": "{{ [[1] * 1000] * 1000 | sum(start=[]) }}",
    "json indent": "{{ [1] * 1000 | tojson(indent=1000000) }}",
    "range": "{% for i in range(10**9) %}{% endfor %}",
    "recursion": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
}
"""Too much, by what the template itself says."""
LASTING = {
    "shared lists": again("{% set ns.y = [ns.y, ns.y] %}"),
    "shared tuples": again("{% set ns.y = (ns.y, ns.y) %}"),
    "shared dicts": again("{% set ns.y = {'a': ns.y, 'b': ns.y} %}"),
    "shared dicts by call": again("{% set ns.y = dict(a=ns.y, b=ns.y) %}"),
    "shared and compared": again(
        "{% set ns.y = [ns.y, ns.y] %}{% set ns.z = [ns.z, ns.z] %}{{ ns.y == ns.z }}"
    ),
    "namespaces": again("{% set ns.y = [namespace(y=ns.y), namespace(y=ns.y)] %}"),
    "round": "{{ 5 | round(-1000000000) }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "loops": "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "sorting": "{% for i in range(90000) %}{% set x = range(90000) | list | sort %}{% endfor %}",
    "searching": "{% set x = 'a' * 999999 %}{% for i in range(99999) %}{{ x.count('b') }}{% endfor %}",
}
"""Too much time, in little memory."""
ENDLESS = LASTING["loops"]
SHORT = Limits(seconds=0.25)
SMALL = Limits(seconds=0.25, memory=128 * 1024 * 1024)
"""A refusal costs all that the limits allow, so most are shown under lower ones; a good proof needs less."""
EACH_KIND = {"format filter", "tilde", "range", "recursion", "shared and compared", "round", "loops"}
"""One of each way to take too much. The soak shows the others: the process has the same limits for all."""


def mark_repetitions(names):
    return [pytest.param(name, marks=[] if name in EACH_KIND else pytest.mark.soak) for name in names]


@pytest.mark.parametrize("name", REACHING)
def test_no_template_reaches_python(name):
    with pytest.raises(TemplateRefused):
        render_marked(REACHING[name], build_conversation("x"))


@pytest.mark.parametrize("name", GROWING)
def test_no_template_makes_too_much(name):
    begun = time.process_time()
    with pytest.raises(TemplateRefused) as refused:
        render_marked(GROWING[name], build_conversation("x"))
    assert "MemoryError" not in refused.value.message
    assert time.process_time() - begun < 10


def test_no_prompt_is_too_long():
    with pytest.raises(TemplateRefused, match="too long a prompt"):
        render_marked("{% for i in range(99999) %}{{ 'a' * 10000 }}{% endfor %}", build_conversation("x"))


def test_no_loop_goes_on_for_ever(monkeypatch):
    monkeypatch.setattr("antiphon.rendering.template.environment.MOST_SECONDS", 0.1)
    with pytest.raises(TemplateRefused, match="too much work"):
        render_marked(ENDLESS, build_conversation("x"))


@pytest.mark.parametrize("name", mark_repetitions(TAKING))
async def test_what_takes_too_much_is_not_proved(name):
    with pytest.raises((TemplateRefused, JobStopped)):
        await run_job(PROOF, build_proof(TAKING[name], SPECIAL), SMALL)


@pytest.mark.parametrize("name", mark_repetitions(LASTING))
async def test_what_takes_too_long_is_stopped(name):
    with pytest.raises(JobStopped) as stopped:
        await run_job(PROOF, build_proof(LASTING[name], SPECIAL), SHORT)
    assert stopped.value.stop is Stop.TIME


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "replace" else pytest.mark.soak) for name in TAKING | LASTING],
)
async def test_the_usual_limits_prove_nothing_of_the_kind(name):
    with pytest.raises((TemplateRefused, JobStopped)):
        await run_job(PROOF, build_proof((TAKING | LASTING)[name], SPECIAL))


async def test_lower_limits_prove_a_good_template():
    await run_job(PROOF, build_proof(CHATML, SPECIAL), SMALL)


def test_a_large_conversation_is_written():
    many = build_conversation(*("a word or two" for _ in range(10_000)))
    assert len(create_template(CHATML).render(many, FakeClock())) == 10_000 * 4 + 2
    long = build_conversation("a word or two <|im_end|> " * 40_000)
    assert render_marked(CHATML, long).count("⟦<|im_end|>⟧") == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_templates_of_real_shape_are_proved(name):
    prove(build_proof(FAMILIES[name], SPECIAL))


def test_what_refuses_even_a_plain_question_is_not_proved():
    with pytest.raises(TemplateRefused, match="never"):
        prove(build_proof("{{ raise_exception('never') }}", SPECIAL))


def test_what_fails_on_a_longer_conversation_is_not_proved():
    with pytest.raises(TemplateRefused, match="UndefinedError"):
        prove(build_proof("{% if messages | length > 2 %}{{ a.b.c }}{% endif %}", SPECIAL))


async def test_the_helper_proves_templates_and_names_their_faults():
    await prove_in_sandbox(build_proof(CHATML, SPECIAL))
    with pytest.raises(TemplateRefused, match="SecurityError"):
        await prove_in_sandbox(build_proof(REACHING["class"], SPECIAL))
