"""Whether a text is made of characters: JSON and templates can say half a surrogate pair, UTF-8 and
tokenizers cannot."""


def is_whole(text: str) -> bool:
    """Whether it holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escape_surrogates(text: str) -> str:
    """The text with what is no character as an escape, for an error's sentence."""
    return text.encode(errors="backslashreplace").decode()
