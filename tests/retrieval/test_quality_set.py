"""The set of pages and questions keeps what its description promises."""

import re
from collections import Counter

from tests.support.retrieval_set import QualityPage, QualityQuestion, read_pages, read_questions

STOP_WORDS = frozenset(
    (
        "a about after again all along am an and any are as ask at avoid be been before being best "
        "between both but by can cannot come could did differ do does doing done down each else enough "
        "ever every for from get gets give go goes going good had has have he help helps her here him "
        "his how i if in into is it its just keep keeps know last long look made make makes man many may "
        "me mean means might more most much must my need needs neither never new no nor not nothing now "
        "of off often old on once one only onto or other ours out over own possible put reach really rid "
        "right same say seldom she should show since so some somebody someone something soon still stop "
        "such take takes tell than that the their them then there these they thing things this those "
        "though through time to too turn two under until up upon use used using usually very want was "
        "way we went were what when where which while who whom whose why will with without work would "
        "yes yet you your "
    ).split()
)
"""English words without content of their own."""

FUNCTION_CHARACTERS = frozenset(
    "的是了吗呢我你他它在有不会可以能要怎么如何为什哪一个种这那多少几该应时候里上下和与或就都也还没得着过把被让给从到对于用做去来再之其人最很太更只些点自己中出后前想看说天家水大小好"
)
"""Chinese characters that a question may share with any page."""

ENDINGS = ("ings", "ing", "edly", "ed", "ers", "er", "ies", "es", "s", "ly", "e", "y")
SHORTEST_STEM = 3


def find_stem(word: str) -> str:
    """The word without its ending, so that `bakes` and `baking` are one."""
    word = word.replace("'s", "").replace("'", "")
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= SHORTEST_STEM:
            return word.removesuffix(ending)
    return word


def find_content(text: str) -> set[str]:
    """The stems of English content words, and pairs of Chinese characters with content."""
    words = re.findall(r"[a-z0-9']+", text.lower())
    found = {find_stem(word) for word in words if word not in STOP_WORDS and len(word) > 1}
    for run in re.findall(r"[\u4e00-\u9fff]+", text):
        pairs = (run[at : at + 2] for at in range(len(run) - 1))
        found |= {pair for pair in pairs if FUNCTION_CHARACTERS.isdisjoint(pair)}
    return found


def find_shared(question: QualityQuestion, pages: dict[str, QualityPage]) -> set[str]:
    """What the question and its page have in common."""
    page = pages[question.page]
    return find_content(question.question) & find_content(f"{page.title}\n{page.text}")


def test_pages_are_many_and_distinct() -> None:
    pages = read_pages()
    assert Counter(page.language for page in pages) == {"en": 200, "zh": 100}
    for values in (
        [page.id for page in pages],
        [page.title for page in pages],
        [page.text for page in pages],
    ):
        assert len(set(values)) == len(pages)
    assert all(30 <= len(page.text) <= 400 for page in pages)


def test_half_of_the_questions_are_paraphrases() -> None:
    questions = read_questions()
    languages = {page.id: page.language for page in read_pages()}
    counted = Counter((languages[each.page], each.kind) for each in questions)
    assert counted["en", "words"] + counted["zh", "words"] == len(questions) / 2 >= 100
    assert min(counted.values()) > 40 and len(counted) == 4
    assert len({each.question for each in questions}) == len(questions)


def test_no_paraphrase_shares_a_content_word_with_its_page() -> None:
    pages = {page.id: page for page in read_pages()}
    shared = {
        each.question: find_shared(each, pages) for each in read_questions() if each.kind == "paraphrase"
    }
    assert {question: words for question, words in shared.items() if words} == {}


def test_every_other_question_shares_content_words() -> None:
    pages = {page.id: page for page in read_pages()}
    assert [each for each in read_questions() if each.kind == "words" and not find_shared(each, pages)] == []


def test_a_shared_word_is_found() -> None:
    page = QualityPage("en-1", "en", "Baking", "Loaves rise. 绿茶用水冲泡。")
    for text, words in (("Does it bake?", {"bak"}), ("How do I rest?", set()), ("绿茶好吗？", {"绿茶"})):
        assert find_shared(QualityQuestion("en-1", "words", text), {"en-1": page}) == words
