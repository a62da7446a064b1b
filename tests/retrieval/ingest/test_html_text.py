"""HTML becomes Markdown, and no visible word is lost."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from antiphon.retrieval.ingest.html_text import read_html

PAGE = """<!doctype html><html><head><title> The  Title </title><style>p {color: red}</style>
<script>let a = "<p>no</p>"</script></head><body>
<h1>Head <em>line</em></h1><p>First   paragraph,
two lines<br>and a break.</p><!-- hidden -->
<ul><li>one<li>two <ol><li>deep</li><li>deeper</li></ol></li></ul>
<table><tr><th>Name</th><th>Age</th></tr>
<tr><td>Ada</td><td></td></tr><tr><td>a|b</td><td><p>3</p><p>6</p></td></tr>
</table><pre>def f():
    return 1
</pre><img alt="A ship" src="ship.png"> Tail &amp; &#8364;<svg><text>x</text></svg></body></html>"""

MARKDOWN = r"""# Head line

First paragraph, two lines
and a break.

- one
- two
  1. deep
  2. deeper

| Name | Age |
| --- | --- |
| Ada |  |
| a\|b | 3 6 |

```
def f():
    return 1
```

A ship Tail & €"""

TAGS = "p div h2 ul ol li table tr td th pre b a br span blockquote title".split()


def test_a_page_becomes_markdown():
    assert read_html(PAGE) == ("The Title", MARKDOWN)


def test_text_without_elements_is_kept():
    assert read_html("just text") == ("", "just text")
    assert read_html("<p>open <b>tags") == ("", "open tags")
    assert read_html("<td>cell</td> outside a table") == ("", "cell outside a table")


def test_preformatted_text_keeps_its_own_fences():
    assert read_html("<pre>```\ncode\n```</pre>")[1] == "~~~~\n```\ncode\n```\n~~~~"


@given(
    st.lists(
        st.one_of(
            st.sampled_from([f"<{tag}>" for tag in TAGS] + [f"</{tag}>" for tag in TAGS]),
            st.integers(0, 999).map(lambda number: f" word{number}. "),
        ),
        max_size=40,
    )
)
def test_no_word_is_lost_by_any_nesting(pieces):
    title, text = read_html("".join(pieces))
    shown = f"{title} {text}"
    assert [word for word in pieces if word.startswith(" ") and word.strip() not in shown] == []


@given(st.text(alphabet="<>!/-[]&;='\"ab p", max_size=60))
def test_any_text_is_read_or_refused(text):
    with suppress(ValueError):
        read_html(text)
