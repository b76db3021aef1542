"""The refusals of a module: its texts of three words and more, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

WORDS_MIN = 3
"""Shorter texts are names of fields."""
HOLE = "…"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text with holes for values; `anchor` is its longest part without a hole."""

    text: str
    anchor: str
    pattern: re.Pattern[str]

    def fits(self, spoken: str) -> bool:
        """Return whether `spoken` contains this sentence."""
        return self.anchor in spoken and self.pattern.search(spoken) is not None


class Sentences:
    """The sentences of some modules, and those not yet met, without those `out_of_reach`."""

    def __init__(self, modules: Sequence[ModuleType], out_of_reach: Sequence[str] = ()) -> None:
        texts = {text: pieces for module in modules for text, pieces in _texts(module)}
        sentences = [_sentence(text, pieces) for text, pieces in texts.items()]
        # A sentence inside another one is longer than the words around its hole, and more specific.
        self._known = sorted(sentences, key=lambda sentence: (-_literal_size(sentence), sentence.text))
        assert set(out_of_reach) <= set(texts), set(out_of_reach) - set(texts)
        self.unheard: set[str] = set(texts) - set(out_of_reach)

    def hear(self, spoken: str) -> str:
        """Return the sentence that `spoken` contains; further sentences in it count as met, too."""
        longest = ""
        for sentence in self._known:
            if (not longest or sentence.text in self.unheard) and sentence.fits(spoken):
                longest = longest or sentence.text
                self.unheard.discard(sentence.text)
        return longest or "another text"


def _literal_size(sentence: Sentence) -> int:
    return len(sentence.text) - sentence.text.count(HOLE)


def _sentence(text: str, pieces: Sequence[str | None]) -> Sentence:
    literals = [piece for piece in pieces if piece is not None]
    pattern = "".join(".*" if piece is None else re.escape(piece) for piece in pieces)
    return Sentence(text, max(literals, key=len), re.compile(pattern, re.DOTALL))


def _texts(module: ModuleType) -> Iterator[tuple[str, list[str | None]]]:
    """Yield every text of a module outside its docstrings and assertions; None in the parts is a hole."""
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in _spoken(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = [piece.value if isinstance(piece, ast.Constant) else None for piece in node.values]
        else:
            pieces = [node.value]
        text = "".join(HOLE if piece is None else str(piece) for piece in pieces)
        if len(text.split()) >= WORDS_MIN and any(piece is not None for piece in pieces):
            yield text, [None if piece is None else str(piece) for piece in pieces]


def _spoken(node: ast.AST) -> Iterator[ast.JoinedStr | ast.Constant]:
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    if isinstance(node, ast.Assert) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    for child in ast.iter_child_nodes(node):
        yield from _spoken(child)
