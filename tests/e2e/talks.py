"""Long conversations."""

SYSTEM = {"role": "system", "content": "You are Cantor. Answer in one sentence."}
QUESTION = "Question {number}: what can you tell me about keys, limits, prices and the ledger of this server?"
ANSWER = "Answer {number}: keys have limits, prices make costs, and the ledger has a row for each request."
Messages = list[dict[str, str]]


def build_talk(turns: int) -> Messages:
    """A conversation of so many turns, all answered."""
    messages: Messages = [SYSTEM]
    for number in range(turns):
        messages.append({"role": "user", "content": QUESTION.format(number=number)})
        messages.append({"role": "assistant", "content": ANSWER.format(number=number)})
    return messages
