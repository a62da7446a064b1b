"""The path of headings above a place in Markdown."""

import pytest

from antiphon.retrieval.ingest.split import LONGEST_PATH, find_headings, find_path

TEXT = """before

# Guide ##
intro
### Deep
x
## Install
```
# a comment
```
y
#hashtag
~~~
## no
~~~
# Other
z"""


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("before", ""),
        ("# Guide", "Guide"),
        ("intro", "Guide"),
        ("x", "Guide > Deep"),
        ("# a comment", "Guide > Install"),
        ("#hashtag", "Guide > Install"),
        ("## no", "Guide > Install"),
        ("z", "Other"),
    ],
)
def test_a_place_has_the_headings_above_it(place, path):
    assert find_path(find_headings(TEXT), TEXT, TEXT.index(place)) == path


def test_spaces_before_a_heading_belong_to_it():
    start = TEXT.index("\n# Other")
    assert find_path(find_headings(TEXT), TEXT, start) == "Other"


def test_a_long_path_keeps_its_end():
    text = f"# {'a' * 600}\n## end\nx"
    path = find_path(find_headings(text), text, len(text) - 1)
    assert len(path) == LONGEST_PATH and path.endswith("a > end")
