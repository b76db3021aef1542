"""The program in a confined child that reads one chat template and renders it with sample conversations.

    python -m organs.registry.chat_trial     an order of JSON on the standard input, of which there are two

For a `TemplateFrame`, it prints one line: the text around the messages of a conversation, whose contents it never
sees. For a `TemplateTrial`, it prints one line of JSON for each finding, as soon as it is found, and a last line. A
template is a program of a stranger in the language Jinja. It is only run here, in a process without files, network and
processes, and with limits (`registry.chat_templates`): jinja2's sandbox alone does not stop an endless loop, and was
escaped before.

The templates see what the template engines of transformers and llama.cpp give them: the same options of Jinja, the
same functions, the tags `break`, `continue` and `generation`.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from typing import Any, TypedDict

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

READ_SECONDS, RENDER_SECONDS = 2.0, 1.0
"""Processor time for parsing a template, and for one rendering. They take about 20 ms and a millisecond."""
OUTPUT_MAX_CHARACTERS = 256 * 1024
"""The longest text of a sample conversation. Templates add some kilobytes to it."""
PROBES_MAX = 48
"""The most words of a template that are tried in a message."""
PROBE_MAX_CHARACTERS = 60
TURNS, WORDED_TURNS = 12, 6
"""Questions of the longest conversation, and of those in which each message has a word of the template."""
SAME_CHARACTERS = 24
"""So many equal characters show where two texts are the same again."""
SHOWN_MAX = 100


class TemplateTrial(TypedDict):
    """What the program is to try: a template, and the tokens of its model."""

    template: str
    bos: str
    eos: str
    adds_bos: bool
    """Whether runtimes put the first token before every text."""


class TemplateFrame(TypedDict):
    """A conversation whose frame is wanted: a template, the tokens of its model, and the roles of the messages."""

    template: str
    bos: str
    eos: str
    roles: list[str]


class Found(TypedDict):
    """A finding: its code (`ingest.checking`), and the sentence."""

    code: str
    sentence: str


class GenerationTag(Extension):
    """The tag of transformers around the words of the assistant; it does not change the text."""

    tags = {"generation"}  # noqa: RUF012  # as its base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> SandboxedEnvironment:
    """Return the environment in which chat templates are parsed."""
    jinja = SandboxedEnvironment(  # the result is text for a model, not HTML
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[GenerationTag, "jinja2.ext.loopcontrols", "jinja2.ext.do"],
    )
    jinja.filters["tojson"] = _to_json
    return jinja


def syntax_fault(text: str) -> str | None:
    """Return why a chat template is not one in Jinja, in a few words; None if it can be parsed. It is not run."""
    try:
        environment().parse(text)
    except (TemplateError, RecursionError, ValueError) as error:
        return _reason(error)
    return None


def main() -> None:
    """Read one order, and print what is found."""
    order = json.load(sys.stdin)
    if "roles" in order:
        sys.stdout.write(json.dumps(frame(order)) + "\n")
        return
    for found in findings(order):
        _print(found)
    _print({"code": "done", "sentence": ""})


def _print(found: Found) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


BEGINS, ENDS = "\ue000", "\ue001"
"""Private characters around the number of a message, in its place in a frame."""


_MARK = re.compile(f"{BEGINS}([0-9]{{1,4}}){ENDS}")


def frame(order: TemplateFrame) -> dict[str, str | list[str | int]]:
    """Return the `parts` of a conversation: texts, and the numbers of the messages; or why there are none: `refused`.

    Renders the template: only for a confined process.
    """
    messages = [(role, f"{BEGINS}{number}{ENDS}") for number, role in enumerate(order["roles"])]
    reason = "it leaves out a message"
    try:
        with _limited(READ_SECONDS):
            template = environment().from_string(order["template"], _functions(datetime.now()))  # noqa: DTZ005
        for in_parts in (False, True):
            text = _rendered(
                template.generate(
                    messages=_conversation(*messages, in_parts=in_parts),
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    bos_token=order["bos"],
                    eos_token=order["eos"],
                )
            )
            if all(mark in text for _, mark in messages):
                split = enumerate(_MARK.split(text))
                return {"parts": [int(part) if number % 2 else part for number, part in split if part]}
    except (_TooSlow, _TooLong, MemoryError) as error:
        reason = "it writes too much" if isinstance(error, _TooLong) else _reason(error)
    except Exception as error:  # noqa: BLE001  # a template can raise anything
        reason = _shown(error)
    return {"refused": reason}


def findings(order: TemplateTrial) -> Iterator[Found]:
    """Yield what is wrong with a template: first what its text shows, then what its renderings show.

    Renders the template: only for a confined process.
    """
    text = order["template"]
    yield from _hidden_characters(text)
    jinja = environment()
    try:
        with _limited(READ_SECONDS):
            tree = jinja.parse(text)
            shown = list(_forbidden(tree))
            conditions = _Conditions(tree)
            template = jinja.from_string(text, _functions())
    except (TemplateError, RecursionError, ValueError) as error:
        yield {"code": "template-broken", "sentence": f"the chat template cannot be read: {_reason(error)}"}
        return
    except (_TooSlow, MemoryError, ArithmeticError) as error:
        yield {"code": "template-endless", "sentence": f"reading the chat template was stopped: {_reason(error)}"}
        return
    yield from shown
    yield from conditions.findings()
    probes = list(dict.fromkeys([*conditions.plain, *_words(tree)]))[:PROBES_MAX]
    trial = _Trial(lambda **names: _rendered(template.generate(**names)), order)
    yield from trial.findings(probes, conditions.plain, conditions.marks)


_INVISIBLE = "Cf"
"""The category of characters that have no shape: zero width, direction of writing, tags."""
_JOINERS = "\u200c\u200d"
"""They are parts of words in some scripts, and of emoji."""


def _hidden_characters(text: str) -> Iterator[Found]:
    found: dict[str, int] = {}
    for number, (before, character) in enumerate(zip(" " + text, text, strict=False)):
        is_joiner = character in _JOINERS and not before.isascii()
        if unicodedata.category(character) == _INVISIBLE and not is_joiner:
            found.setdefault(character, text.count("\n", 0, number) + 1)
    if found:
        named = [
            f"U+{ord(character):04X} {unicodedata.name(character, '')}".rstrip() + f" in line {line}"
            for character, line in list(found.items())[:3]
        ]
        sentence = f"the chat template has invisible characters: {', '.join(named)}"
        yield {"code": "template-hidden-text", "sentence": sentence}


_INTERNAL = re.compile(r"__[a-z]+__")
_CHANGING = ("append", "extend", "insert", "pop", "remove", "clear", "update", "setdefault", "sort", "reverse")
"""Methods that change a value."""
_ADDRESS = re.compile(r"(?:https?|ftp|wss?)://[^\s'\"<>]{3,}|\bwww\.[a-z0-9-]+\.[a-z]{2,}", re.IGNORECASE)


def _forbidden(tree: nodes.Template) -> Iterator[Found]:
    """Yield what no chat template needs: internals of Python, other files, addresses."""
    internals: dict[str, int] = {}
    for node in tree.find_all((nodes.Getattr, nodes.Getitem, nodes.Const, nodes.Name, nodes.Filter, nodes.Concat)):
        for name in _names_of(node):
            if name.startswith("_") or _INTERNAL.search(name):
                internals.setdefault(name, node.lineno)
    if internals:
        listed = ", ".join(f"{_shown(name)} in line {line}" for name, line in list(internals.items())[:3])
        yield {"code": "template-escape", "sentence": f"the chat template reaches for internals of Python: {listed}"}
    other = next(tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)), None)
    if other is not None:
        kind = type(other).__name__.lower()
        sentence = f"the chat template reads another file ({kind}, in line {other.lineno}): runtimes refuse it"
        yield {"code": "template-reads-files", "sentence": sentence}
    changing = [
        node.lineno
        for node in tree.find_all(nodes.Call)
        if isinstance(node.node, nodes.Getattr) and node.node.attr in _CHANGING
    ]
    if changing:
        sentence = f"the chat template changes lists, which transformers refuses, in line {min(changing)}"
        yield {"code": "template-changes-values", "sentence": sentence}
    addresses = [
        (match[0], node.lineno)
        for node in tree.find_all((nodes.TemplateData, nodes.Const))
        for match in _ADDRESS.finditer(_text_of(node))
    ]
    if addresses:
        (address, line), *more = addresses
        others = f" and {len(more)} more" if more else ""
        sentence = f"the chat template can write an address into conversations: {_shown(address)}, line {line}{others}"
        yield {"code": "template-address", "sentence": sentence}


def _names_of(node: nodes.Node) -> Iterator[str]:
    """Yield the names by which a node reaches into a value."""
    if isinstance(node, nodes.Getattr):
        yield node.attr
    elif isinstance(node, nodes.Name):
        yield from [node.name] if _INTERNAL.search(node.name) else []
    elif isinstance(node, nodes.Getitem):
        yield from (text for text in _folded(node.arg) if text.startswith("_"))
    elif isinstance(node, nodes.Filter) and node.name in ("attr", "map"):
        for part in (*node.args, *(pair.value for pair in node.kwargs)):
            yield from (text for text in _folded(part) if text.startswith("_"))
    elif isinstance(node, nodes.Const | nodes.Concat):
        yield from (match for text in _folded(node) for match in _INTERNAL.findall(text))


def _text_of(node: nodes.Node) -> str:
    value = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
    return value if isinstance(value, str) else ""


def _folded(node: nodes.Node) -> list[str]:
    """Return the texts of a constant expression: a text, or a list of texts; none for another expression."""
    if not isinstance(node, nodes.Expr):
        return []
    with suppress(Exception):
        value = node.as_const()
        return [item for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, str)]
    return []


MESSAGE_KEYS = ("content", "text")
"""The keys of what a person or the model wrote."""
PART_KEYS = (
    "type",
    "image",
    "image_url",
    "video",
    "audio",
    "input_audio",
    "file",
    "document",
    "parts",
    "blocks",
    "value",
)
"""Keys and types of the parts of a message."""
_COMPARING = ("startswith", "endswith", "find", "rfind", "index", "count", "split", "rsplit", "partition", "replace")
"""Methods of text that depend on whether it has a word."""
_CHOOSING = ("select", "reject", "selectattr", "rejectattr", "replace")
_TESTS = ("in", "eq", "equalto", "==", "ne", "!=", "sameas")
_ROUNDS = 4
"""How often values are followed from name to name."""
_MARKUP = re.compile(r"[<>|\[\]{}/\\#*=_\n]")
_WORD = re.compile(r"[^\W\d_]{2,}")


class _Conditions:
    """The texts with which a template compares what was said: `plain` words, and `marks` such as `</think>`."""

    def __init__(self, tree: nodes.Template) -> None:
        self._contents: set[str] = set()
        """Names with values from messages."""
        self._texts: dict[str, list[str]] = {}
        """Texts in the values of names."""
        self._dates: set[str] = set()
        self.plain: list[str] = []
        self.marks: list[str] = []
        self._date_line = 0
        keys = (_key_of(node) for node in tree.find_all((nodes.Getattr, nodes.Getitem)))
        self._keys = {*PART_KEYS, *(key for key in keys if key is not None), *_requested_keys(tree)}
        """Texts that are keys of values in this template: `'image' in part` asks for a key."""
        for _ in range(_ROUNDS):
            self._follow(tree)
        self._compare(tree)

    def findings(self) -> Iterator[Found]:
        """Yield the finding on a condition by date."""
        if self._date_line:
            sentence = f"what the chat template writes depends on the date, in line {self._date_line}"
            yield {"code": "template-date", "sentence": sentence}

    def _follow(self, tree: nodes.Template) -> None:
        """Follow values of messages, texts and dates through assignments, loops and calls of macros."""
        macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        for node in tree.find_all((nodes.Assign, nodes.For, nodes.Call)):
            if isinstance(node, nodes.Assign):
                self._pass(node.target, node.node)
            elif isinstance(node, nodes.For):
                self._pass(node.target, node.iter)
            elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name in macros:
                for parameter, argument in zip(macros[node.node.name].args, node.args, strict=False):
                    self._pass(parameter, argument)
                for pair in node.kwargs:
                    self._pass(nodes.Name(pair.key, "store"), pair.value)

    def _pass(self, target: nodes.Node, value: nodes.Node) -> None:
        for name in _target_names(target):
            if self._is_content(value):
                self._contents.add(name)
            if self._is_date(value):
                self._dates.add(name)
            known = self._texts.setdefault(name, [])
            known += [text for text in self._texts_in(value) if text not in known]

    def _is_content(self, node: nodes.Node) -> bool:
        """Return whether the value of `node` is, or has, what was said."""
        if isinstance(node, nodes.Name):
            return node.name in self._contents
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            keys = _folded(node.args[0]) if node.node.attr == "get" and node.args else []
            if keys:
                return keys[0] in MESSAGE_KEYS
            return any(map(self._is_content, (node.node.node, *node.args)))
        key = _key_of(node)
        if key is not None:
            return key in MESSAGE_KEYS or not self._contents.isdisjoint(_target_names(node))
        if isinstance(node, nodes.Test) or (isinstance(node, nodes.Filter) and node.name in ("length", "count")):
            return False
        return any(map(self._is_content, node.iter_child_nodes()))

    def _is_date(self, node: nodes.Node) -> bool:
        if isinstance(node, nodes.Name):
            return node.name in self._dates
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "strftime_now":
            return True
        return any(map(self._is_date, node.iter_child_nodes()))

    def _texts_in(self, node: nodes.Node) -> list[str]:
        """Return the texts in an expression, or those that it joins."""
        folded = _folded(node)
        if folded:
            return folded
        if isinstance(node, nodes.Name):
            return self._texts.get(node.name, [])
        return [text for child in node.iter_child_nodes() for text in self._texts_in(child)]

    def _compare(self, tree: nodes.Template) -> None:
        for node in tree.find_all((nodes.Compare, nodes.Call, nodes.Filter, nodes.Test)):
            has_content, others = self._sides(node)
            if has_content:
                for text in (text for other in others for text in self._texts_in(other) if text not in self._keys):
                    listed = self.marks if _MARKUP.search(text) or not _WORD.search(text) else self.plain
                    if text.strip() and text not in listed:
                        listed.append(text)
            if isinstance(node, nodes.Compare) and self._is_date(node) and not self._date_line:
                self._date_line = node.lineno

    def _sides(self, node: nodes.Node) -> tuple[bool, list[nodes.Node]]:
        """Return whether `node` compares what was said with something, and the expressions that it compares it with."""
        parts: list[nodes.Node] = []
        if isinstance(node, nodes.Compare):
            parts = [node.expr, *(operand.expr for operand in node.ops)]
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.node.attr in _COMPARING:
            parts = [node.node.node, *node.args]
        elif isinstance(node, nodes.Test) and node.name in _TESTS:
            parts = [node.node, *node.args]
        elif isinstance(node, nodes.Filter) and node.name in _CHOOSING and node.node is not None:
            parts = [node.node, *node.args]
            if node.name.endswith("attr") and not set(_folded(node.args[0]) if node.args else []) & set(MESSAGE_KEYS):
                return False, []
        contents = [part for part in parts if self._is_content(part)]
        is_of_message = isinstance(node, nodes.Filter) and node.name.endswith("attr")
        return bool(contents) or is_of_message, [part for part in parts if part not in contents]


def _key_of(node: nodes.Node) -> str | None:
    """Return the key of `value.key` and `value["key"]`; None for another expression."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem):
        return next(iter(_folded(node.arg)), None)
    return None


def _requested_keys(tree: nodes.Template) -> Iterator[str]:
    """Yield the keys that a template asks for by `value.get(key)`."""
    for node in tree.find_all(nodes.Call):
        if isinstance(node.node, nodes.Getattr) and node.node.attr == "get" and node.args:
            yield from _folded(node.args[0])


def _target_names(node: nodes.Node) -> list[str]:
    """Return the names that an assignment gives values to; `namespace.key` is one."""
    if isinstance(node, nodes.Name):
        return [node.name]
    if isinstance(node, nodes.NSRef):
        return [f"{node.name}.{node.attr}"]
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return [f"{node.node.name}.{node.attr}"]
    if isinstance(node, nodes.Tuple):
        return [name for item in node.items for name in _target_names(item)]
    return []


def _words(tree: nodes.Template) -> Iterator[str]:
    """Yield the short texts in the expressions of a template that could be words of a message."""
    for node in tree.find_all(nodes.Const):
        text = _text_of(node)
        if 2 < len(text) <= PROBE_MAX_CHARACTERS and _WORD.search(text) and not _MARKUP.search(text):
            yield text


class _Raised(TemplateError):
    """The template itself refuses a conversation, by `raise_exception`."""


class _TooSlow(BaseException):
    """A rendering took longer than RENDER_SECONDS. No handler of errors may take it: the timer rings once."""


class _TooLong(Exception):
    """The text of a conversation is longer than OUTPUT_MAX_CHARACTERS."""


NOW = datetime(2026, 1, 14)  # noqa: DTZ001  # templates show a day without a zone


def _functions(now: datetime = NOW) -> dict[str, Any]:
    """Return the functions and filters that templates find in transformers and llama.cpp."""

    def raise_exception(message: object = "") -> None:
        raise _Raised(str(message)[:SHOWN_MAX])

    return {"raise_exception": raise_exception, "strftime_now": lambda form: now.strftime(str(form))}


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # What `map` and `select` give is a list in llama.cpp.
    listed = list(value) if isinstance(value, Iterator) else value
    return json.dumps(listed, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _rendered(pieces: Iterable[str]) -> str:
    """Return the text of a rendering. Raises _TooSlow, _TooLong, and all errors of the template."""
    written: list[str] = []
    length = 0
    with _limited(RENDER_SECONDS):
        for piece in pieces:
            written.append(piece)
            length += len(piece)
            if length > OUTPUT_MAX_CHARACTERS:
                raise _TooLong
    return "".join(written)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise _TooSlow in the block after so many seconds of processor time."""

    def stop(*_: object) -> None:
        raise _TooSlow

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


Message = dict[str, object]
SYSTEM, FIRST = "Answer in one short sentence.", "Which river flows through Basel?"
ANSWER, SECOND = "The Rhine flows through Basel.", "How deep are lakes in that country?"
OTHER = "Name two trees."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_depth",
        "description": "Return the depth of a lake in metres.",
        "parameters": {
            "type": "object",
            "properties": {"lake": {"type": "string", "description": "The name of the lake."}},
            "required": ["lake"],
        },
    },
}


def _conversation(*messages: tuple[str, str], in_parts: bool) -> list[Message]:
    return [
        {"role": role, "content": [{"type": "text", "text": words}] if in_parts else words} for role, words in messages
    ]


class _Trial:
    """Renderings of sample conversations."""

    def __init__(self, render: Callable[..., str], order: TemplateTrial) -> None:
        self._render, self._order = render, order
        self._in_parts = False
        """Whether the content of a message is a list of parts, which some templates need."""
        self._tools: list[Any] | None = None
        """The tools of a conversation, without which some templates cannot be used."""

    def findings(self, probes: Sequence[str], plain: Sequence[str], marks: Sequence[str]) -> Iterator[Found]:
        """Yield what the renderings show; `probes` are words to try, `plain` and `marks` those of conditions."""
        try:
            failure = self._first_failure()
            if failure is not None:
                yield failure
            if failure is not None and self._tools is None:
                return
            yield from self._of_conversations()
            yield from self._of_words(probes, plain, marks)
        except _TooSlow:
            sentence = f"the chat template does not end: it was stopped after {RENDER_SECONDS:g} s of processor time"
            yield {"code": "template-endless", "sentence": sentence}
        except (_TooLong, MemoryError):
            sentence = (
                f"the chat template writes more than {OUTPUT_MAX_CHARACTERS // 1024} KiB for a short conversation"
            )
            yield {"code": "template-huge", "sentence": sentence}

    def _text(self, *messages: tuple[str, str], asks: bool = True, tools: list[Any] | None = None) -> str:
        bos, eos = self._order["bos"], self._order["eos"]
        return self._render(
            messages=_conversation(*messages, in_parts=self._in_parts),
            tools=json.loads(json.dumps(tools or self._tools)),  # a copy: a template may change it
            functions=json.dumps(tools or self._tools or []),
            datetime=NOW.isoformat(),
            documents=None,
            add_generation_prompt=asks,
            bos_token=bos,
            eos_token=eos,
        )

    def _failure(self, situation: str, *messages: tuple[str, str], **options: Any) -> Found | None:
        """Return the finding on a conversation that the template cannot write; None if it can."""
        try:
            self._text(*messages, **options)
        except SecurityError as error:
            sentence = f"the chat template does what the sandbox of Jinja forbids: {_shown(str(error))}"
            return {"code": "template-escape", "sentence": sentence}
        except (_TooSlow, _TooLong, MemoryError):
            raise
        except _Raised as error:
            return {"code": "template-refuses", "sentence": f"the chat template refuses {situation}: {_shown(error)}"}
        except Exception as error:  # noqa: BLE001  # a template can raise anything
            sentence = f"the chat template fails with {situation}: {type(error).__name__}: {_shown(error)}"
            return {"code": "template-fails", "sentence": sentence}
        return None

    def _first_failure(self) -> Found | None:
        """Return why a question cannot be written; sets the form of messages, and the tools, with which it can be."""
        first: Found | None = None
        for tools in (None, [TOOL]):
            for in_parts in (False, True):
                self._tools, self._in_parts = tools, in_parts
                failure = self._failure("a question", ("user", FIRST))
                if failure is None and FIRST in self._text(("user", FIRST)):
                    sentence = "the chat template can only be used with tools: it is one of several, or for programs"
                    return {"code": "template-needs-tools", "sentence": sentence} if tools else None
                first = first or failure
        self._tools, self._in_parts = None, False
        return first

    def _of_conversations(self) -> Iterator[Found]:
        chat = [("user", FIRST), ("assistant", ANSWER), ("user", SECOND)]
        failure = self._failure("a conversation", *chat)
        if failure is not None:
            yield failure
            return
        text = self._text(*chat)
        lost = [name for name, (_, words) in zip(("first question", "answer", "last question"), chat, strict=True)
                if words not in text]  # fmt: skip
        if lost:
            sentence = f"the chat template loses parts of a conversation: the {' and the '.join(lost)}"
            yield {"code": "template-loses-text", "sentence": sentence}
        bos = self._order["bos"]
        if bos and text.startswith(bos * 2):
            yield {"code": "template-two-bos", "sentence": f"the chat template writes {_shown(bos)} twice at the start"}
        elif bos and text.startswith(bos) and self._order["adds_bos"]:
            sentence = (
                f"the chat template writes {_shown(bos)} at the start, and add_bos_token adds it again in programs "
                "that do not remove one of the two"
            )
            yield {"code": "template-bos", "sentence": sentence}
        system = ("system", SYSTEM)
        failure = self._failure("a system message", system, *chat)
        if failure is not None:
            yield failure
        elif SYSTEM not in self._text(system, *chat):
            yield {"code": "template-no-system", "sentence": "the chat template leaves out system messages"}
        for situation, options in (
            ("a conversation without the beginning of an answer", {"asks": False}),
            ("tools", {"tools": [TOOL]}),
        ):
            failure = self._failure(situation, *chat, **options)
            if failure is not None:
                yield failure
        if text != self._text(*chat):
            sentence = "the chat template writes another text each time: it uses chance"
            yield {"code": "template-random", "sentence": sentence}
            return
        # Each further question with its answer must add as many characters as the one before.
        pair = [("user", FIRST), ("assistant", ANSWER)]
        texts = [self._text(*pair * count, ("user", SECOND)) for count in range(1, TURNS + 1)]
        growth = [len(after) - len(before) for before, after in pairwise(texts)]
        odd = next((number for number, size in enumerate(growth) if size != growth[0]), None)
        if odd is not None:
            sentence = (
                f"what the chat template writes depends on the number of messages: it changes at question {odd + 3}"
            )
            yield {"code": "template-turns", "sentence": sentence}

    def _of_words(self, probes: Sequence[str], plain: Sequence[str], marks: Sequence[str]) -> Iterator[Found]:
        """Yield findings on texts that depend on the words of a message, as seen or as the conditions say.

        Each word is put into every message of a conversation: nothing else of the text may change.
        """
        chat = [("system", SYSTEM), *[("user", FIRST), ("assistant", ANSWER)] * WORDED_TURNS, ("user", SECOND)]
        chat = chat if self._failure("a system message", *chat) is None else chat[1:]
        usual = self._text(*chat)
        effects: dict[str, str] = {}
        for probe in ("", *probes):
            expected = usual
            changed = [(role, f"{words} {probe}." if probe else f"{words} {OTHER}") for role, words in chat]
            for before, after in {before: after for (_, before), (_, after) in zip(chat, changed, strict=True)}.items():
                expected = expected.replace(before, after)
            with suppress(TemplateError, TypeError, ValueError, LookupError, ArithmeticError):
                written = self._text(*changed)
                if written != expected:
                    effects[probe.strip() or OTHER] = _added(expected, written)
        seen = [f"{_shown(word)} (which adds {_shown(effect)})" for word, effect in effects.items()]
        seen += [_shown(word) for word in plain if word.strip() not in effects]
        if seen:
            more = f" and {len(seen) - 3} more" if len(seen) > 3 else ""
            sentence = f"what the chat template writes depends on words of a message: {', '.join(seen[:3])}{more}"
            yield {"code": "template-condition", "sentence": sentence}
        switches = [mark.strip() for mark in marks if mark.strip().startswith("/") and _WORD.search(mark)]
        if switches:
            listed = ", ".join(map(_shown, switches[:3]))
            sentence = f"marks in a message change what the chat template writes: {listed}"
            yield {"code": "template-switch", "sentence": sentence}


def _reason(error: BaseException) -> str:
    """Return in a few words why a template cannot be parsed."""
    if isinstance(error, TemplateError):
        line = getattr(error, "lineno", None)
        return f"{(error.message or '').rstrip('.')}{'' if line is None else f', in line {line}'}"
    if isinstance(error, ValueError):  # of a number with thousands of digits
        return "it has a number that is too long"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "it takes too long" if isinstance(error, _TooSlow) else "it takes too much memory"


def _added(expected: str, written: str) -> str:
    """Return what is first added to `expected` in `written`, or else the text that replaces another."""
    begin = 0
    while begin < min(len(expected), len(written)) and expected[begin] == written[begin]:
        begin += 1
    after = written.find(expected[begin : begin + SAME_CHARACTERS], begin + 1)
    if after > 0 and begin < len(expected):
        return written[begin:after]
    end = 0
    while end < min(len(expected), len(written)) - begin and expected[-1 - end] == written[-1 - end]:
        end += 1
    return written[begin : len(written) - end] or expected[begin : len(expected) - end]


def _shown(value: object) -> str:
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in str(value)).split())
    return repr(text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…")


if __name__ == "__main__":
    main()
