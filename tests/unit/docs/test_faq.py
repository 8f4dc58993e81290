"""Each answer leads to the page that has the details, and names commands that exist."""

import re

from docs.generator.pages import DOCS

from tests.unit.docs.named_commands import unknown_to_gputile

_PAGE = (DOCS / "guides" / "faq.md").read_text(encoding="utf-8")
_ANSWERS = re.findall(r"^\*\*(?P<question>[^*]+)\*\*(?P<answer>.*?)(?=\n\n)", _PAGE + "\n\n", re.MULTILINE | re.DOTALL)


def test_each_answer_links_to_its_evidence() -> None:
    assert len(_ANSWERS) >= 20
    assert [question for question, answer in _ANSWERS if not re.search(r"\]\([\w./-]+\.md", answer)] == []


def test_each_command_exists_with_its_options() -> None:
    assert unknown_to_gputile(_PAGE) == []
