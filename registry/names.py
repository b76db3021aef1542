"""Model names: `namespace/name`, with `@version` if needed. They can be part of a path and of an address.

Two rules apply. `parse_model_name` accepts every name that this program has ever registered. `check_new_name` is
stricter: the clients of the Hugging Face hub and llama.cpp must also accept a new name, because they do not request
other names. Sources: `validate_repo_id` in huggingface_hub's `utils/_validators.py` (no `--`, no `..`, no `.git`
at the end, at most 96 characters) and `is_valid_repo_id` in llama.cpp's `common/hf-cache.cpp` (`.` and `-` only between
letters, digits and underscores).

For models that exist, `parse_model_name` also accepts a name as Ollama prints it, such as `zoo:8b` or
`hf.co/acme/Tiny-GGUF:Q4_K_M`. A name that is given to a model is read by `parse_new_name`, which changes nothing.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from heapq import nlargest
from itertools import pairwise

from organs.registry.errors import BadInput, BadName

NAME_MAX_LENGTH = 96
LOCAL = "local"
"""The namespace of names that state none."""
MODEL_TEXT_MAX_LENGTH = 210
"""The maximum number of characters of a complete name, with namespace and version."""
QUERY_NAME_MAX_LENGTH = 64
QUERY_NAME_PATTERN = "[A-Za-z0-9](?:[A-Za-z0-9._\\-]{0,62}[A-Za-z0-9])?"
"""The form of the names of saved queries. In commands they follow an @."""
RESERVED_NAMESPACES = frozenset(
    {
        "account",
        "admin",
        "api",
        "chimeras",
        "compare",
        "compose",
        "contributors",
        "healthz",
        "jobs",
        "lineage",
        "login",
        "logout",
        "metrics",
        "models",
        "organs",
        "reports",
        "search",
        "static",
        "submissions",
        "upload",
        "uploads",
        "v2",
    }
)
RESERVED_ENDINGS = (".json", ".csv", ".gguf")
"""Endings of addresses of the catalog."""
REFUSED_ENDINGS = (*RESERVED_ENDINGS, ".git")
"""Endings that a new name may not have."""
OLLAMA_HOST, OLLAMA_NAMESPACE, OLLAMA_TAG = "registry.ollama.ai", "library", "latest"
"""What Ollama adds to a name that does not state it."""
HUB_HOSTS = ("hf.co", "huggingface.co")
"""Hosts of repositories from which Ollama pulls files."""
DIGEST_LENGTH = 8
"""The number of hexadecimal digits that replace letters without an ASCII form in a proposed name."""

_QUANTISATION = re.compile(
    r"(?P<stem>.*?[A-Za-z0-9])[-._](?P<quantisation>(?:(?:UD|i1|imat(?:rix)?)[-._])?"
    r"(?P<plain>(?:I?Q[1-8]|TQ[12])_[A-Z0-9_]{1,12}?|(?:MXFP[468]|NVFP4)(?:_[A-Z0-9_]{1,12}?)??|BF16|F16|F32|FP16|FP32"
    r"|[0-9]{1,4}(?:\.[0-9]{1,3})?(?:bpw|[MG]B))(?:[-._](?:imat(?:rix)?|best))?)",
    re.ASCII | re.IGNORECASE,
)
_SIZE_TAG = re.compile(r"(?P<number>[0-9]{1,4}(?:\.[0-9]{1,3})?)(?P<unit>bpw|[MG]B)", re.ASCII | re.IGNORECASE)
_DIGEST_NAME = re.compile(r"sha256[-_.][0-9a-f]{12,64}|[0-9a-f]{64}", re.ASCII | re.IGNORECASE)
_OLLAMA_NAME = re.compile(
    r"(?:(?P<host>[A-Za-z0-9_][A-Za-z0-9._:-]{0,349})/(?=[^/]+/))?(?:(?P<namespace>[A-Za-z0-9_][A-Za-z0-9._-]{0,95})/)?"
    r"(?P<model>[A-Za-z0-9_][A-Za-z0-9._-]{0,95}):(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,95})",
    re.ASCII,
)
_GGUF_ENDING = re.compile(r"[-_.]GGUF$", re.IGNORECASE)
_WORDS = re.compile(r"[^._-]+[._-]*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_UNWANTED = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_SPECIALS = re.compile(r"[.-]{2,}")
_EDGES = "._-"


def _letters(alphabet: str, latin: str) -> dict[str, str]:
    return dict(zip(alphabet, latin.split(), strict=True))


_LATIN = {
    **_letters("ßæœøłđðþħıŋ", "ss ae oe o l d d th h i ng"),
    **_letters(
        "абвгдежзийклмнопрстуфхцчшщыэюя", "a b v g d e zh z i i k l m n o p r s t u f kh ts ch sh shch y e yu ya"
    ),
    **_letters("ґєѕјљњћџѓќўі", "g ye z j lj nj c dz g k u i"),
    **_letters("αβγδεζηθικλμνξοπρσςτυφχψω", "a v g d e z i th i k l m n x o p r s s t y f ch ps o"),
    **dict.fromkeys("ъьʹʺ'’", ""),
}
"""Latin letters for lower-case letters that Unicode does not decompose into Latin letters."""


@dataclass(frozen=True, slots=True)
class ModelName:
    """A valid name of a model. If `version` is None, it is the newest version."""

    namespace: str
    name: str
    version: int | None = None

    def __str__(self) -> str:
        plain = f"{self.namespace}/{self.name}"
        return plain if self.version is None else f"{plain}@{self.version}"


def check_query_name(name: str) -> None:
    """Raise BadInput unless `name` can be the name of a saved query."""
    if not re.fullmatch(QUERY_NAME_PATTERN, name, re.ASCII):
        raise BadInput(
            f"{name[:80]!r} is not a name of a query: use up to {QUERY_NAME_MAX_LENGTH} letters, digits, '.', '_' and "
            "'-', with a letter or a digit at both ends"
        )


def parse_model_name(text: str) -> ModelName:
    """Return the name in `text` of a model that exists; the default namespace is `local`.

    A name with a tag, as `ollama list` prints it, becomes the name of `ollama_name`. Raises BadName.
    """
    path, at, version = text.partition("@")
    match = _OLLAMA_NAME.fullmatch(path) if len(path) <= MODEL_TEXT_MAX_LENGTH else None
    if match is None or match["model"].lower() == "sha256":
        return parse_new_name(text)
    host, namespace = match["host"] or OLLAMA_HOST, match["namespace"] or OLLAMA_NAMESPACE
    return parse_new_name(f"{ollama_name(host, namespace, match['model'], match['tag'])}{at}{version}")


def parse_new_name(text: str) -> ModelName:
    """Return the name in `text`, exactly as it is written; the default namespace is `local`.

    Raises BadName, which names the broken rule.
    """
    path, at, version = text.partition("@")
    namespace, slash, name = path.rpartition("/")
    namespace = namespace if slash else LOCAL
    for part, kind in ((namespace, "namespace"), (name, "name")):
        if len(part) > NAME_MAX_LENGTH or not _NAME.fullmatch(part) or ".." in part:
            raise BadName(
                f"{part[:100]!r} is not a {kind}: use letters and digits, with . _ - between them, "
                f"at most {NAME_MAX_LENGTH} characters"
            )
    if namespace.lower() in RESERVED_NAMESPACES:
        raise BadName(f"the namespace {namespace!r} is an address of the catalog: choose another one")
    if name.lower().endswith(RESERVED_ENDINGS):
        raise BadName(f"a name does not end in {', '.join(RESERVED_ENDINGS)}: remove the ending of {name!r}")
    if at and not (version.isascii() and version.isdigit() and 0 < len(version) < 10 and int(version)):
        raise BadName(f"{version[:20]!r} is not a version: use a whole number from 1")
    return ModelName(namespace, name, int(version) if at else None)


def ollama_name(host: str, namespace: str, model: str, tag: str) -> ModelName:
    """Return the name here of a model of Ollama: its tag follows its name, except `latest`.

    A host other than Ollama's own or the hub is in the namespace.
    """
    if host.lower() in HUB_HOSTS:
        model = repository_base(model)
    elif host.lower() != OLLAMA_HOST:
        namespace = f"{host.replace(':', '-')}-{namespace}"
    is_in_name = tag == OLLAMA_TAG or model.lower().endswith(f"-{tag.lower()}")
    return ModelName(namespace_from_text(namespace), name_from_text(model if is_in_name else f"{model}-{tag}"))


def repository_base(repository: str) -> str:
    """Return the name of a repository without `-GGUF` at its end."""
    return _GGUF_ENDING.sub("", repository) or repository


def is_digest_name(name: ModelName) -> bool:
    """Return whether the name of a model is only a digest, as that of a blob, so that any other name is better."""
    return _DIGEST_NAME.fullmatch(name.name) is not None


def split_quantisation(name: str) -> tuple[str, str | None]:
    """Return `name` without the quantisation at its end, and the quantisation in upper case; None if it has none.

    `Coder-7B-Q4_K_M` is `Coder-7B` and `Q4_K_M`. Models of one namespace with the same first part are the
    quantisations of one model: lists fold them, and `-hf NAMESPACE/Coder-7B:Q4_K_M` finds this one. Words for how it
    was made belong to the quantisation: `UD-Q4_K_XL`, `i1-Q4_K_M` and `Q4_K_M-imat`.
    """
    match = _QUANTISATION.fullmatch(name[:NAME_MAX_LENGTH])
    return (match["stem"], match["quantisation"].upper()) if match else (name, None)


FULL_PRECISION = frozenset({"F16", "BF16", "F32", "FP16", "FP32", "F64"})
"""Quantisations, as names state them, in which no weight is rounded to a few bits."""


def plain_quantisation(quantisation: str) -> str:
    """Return a quantisation of `split_quantisation` without the words for how it was made: `Q4_K_M` for `I1-Q4_K_M`."""
    match = _QUANTISATION.fullmatch(f"x-{quantisation}")
    return match["plain"] if match else quantisation


def size_in_tag(tag: str) -> tuple[float, str] | None:
    """Return the number and the unit (`bpw`, `MB` or `GB`) of a tag such as `4.5bpw`; None for other tags."""
    match = _SIZE_TAG.fullmatch(tag)
    if match is None:
        return None
    return float(match["number"]), next(unit for unit in ("bpw", "MB", "GB") if unit.lower() == match["unit"].lower())


def family_name(stems: Sequence[str]) -> str:
    """Return a name for the family of models with these names without namespaces.

    It is the words that more than half of the names begin with, or else the first name.
    """
    names = [_WORDS.findall(stem) for stem in stems]
    common: list[str] = []
    while True:
        depth = len(common) + 1
        begins = Counter("".join(words[:depth]).strip(_EDGES).lower() for words in names if len(words) >= depth)
        begin, count = begins.most_common(1)[0] if begins else ("", 0)
        if 2 * count <= len(stems):
            return "".join(common).strip(_EDGES) or stems[0]
        names = [words for words in names if "".join(words[:depth]).strip(_EDGES).lower() == begin]
        common = names[0][:depth]


def check_new_name(part: str, kind: str = "name") -> None:
    """Raise BadName if unmodified clients refuse `part`, a name or a namespace that `parse_model_name` accepts."""
    problem = None
    if _SPECIALS.search(part):
        problem = "has two of . and - side by side"
    elif part.lower().endswith(REFUSED_ENDINGS):
        problem = f"ends in {part[part.rindex('.') :]}"
    if problem is not None:
        raise BadName(
            f"the {kind} {part!r} {problem}, and the clients of the Hugging Face hub refuse it: "
            f"use for example {name_from_text(part)!r}"
        )


def namespace_from_text(text: str) -> str:
    """Return the allowed namespace that is nearest to `text`. An address of the catalog gets the prefix `by-`."""
    clean = name_from_text(text)
    return f"by-{clean}"[:NAME_MAX_LENGTH].rstrip(_EDGES) if clean.lower() in RESERVED_NAMESPACES else clean


def name_from_text(text: str) -> str:
    """Return the allowed new name that is nearest to `text`, for example the name of a file or a title.

    Letters of other scripts become Latin letters if `_LATIN` or Unicode has an equivalent. Other letters are removed,
    and the first digits of the SHA-256 of the text are appended, so that different texts do not get the same name.
    """
    letters = list(_transliterated(text))
    clean = _without_endings(_UNWANTED.sub("-", "".join(letters)))
    clean = _without_endings(_SPECIALS.sub(lambda run: "-" if "-" in run[0] else ".", clean))
    is_complete = all(letter.isascii() or not letter.isalnum() for letter in letters)
    if is_complete and clean:
        return clean
    suffix = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
    stem = clean[: NAME_MAX_LENGTH - DIGEST_LENGTH - 1].rstrip(_EDGES)
    return f"{stem or 'model'}-{suffix}"


def _transliterated(text: str) -> Iterator[str]:
    for letter in unicodedata.normalize("NFKC", text):
        for part in unicodedata.normalize("NFKD", _LATIN.get(letter.lower(), letter)):
            if unicodedata.combining(part):
                continue
            latin = _LATIN.get(part.lower(), part)
            yield latin.capitalize() if letter != letter.lower() else latin


def _without_endings(clean: str) -> str:
    """Return `clean` cut to the length of a name, without endings that a new name may not have."""
    clean = clean.strip(_EDGES)[:NAME_MAX_LENGTH].rstrip(_EDGES)
    while clean.lower().endswith(REFUSED_ENDINGS):
        clean = clean.rpartition(".")[0].rstrip(_EDGES)
    return clean


COMPARED_MAX_LENGTH = 200
"""The most characters of a word for which `nearest` suggests another. The longest name of a model has 193."""
CANDIDATES_MAX = 20
"""The most words that `nearest` compares letter by letter."""


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar of `words`, with a similarity of at least `cutoff` (0 to 1), or None.

    A comparison of two hostile words takes up to a millisecond. Therefore only words up to COMPARED_MAX_LENGTH are
    compared, and only with the CANDIDATES_MAX words that share the most pairs of letters with `word`.
    """
    if len(word) > COMPARED_MAX_LENGTH:
        return None
    by_fold = {candidate.casefold(): candidate for candidate in words}
    folded = word.casefold()
    candidates = list(by_fold)
    if len(candidates) > CANDIDATES_MAX:
        pairs = set(pairwise(folded))
        candidates = nlargest(CANDIDATES_MAX, candidates, key=lambda other: len(pairs & set(pairwise(other))))
    close = get_close_matches(folded, candidates, n=1, cutoff=cutoff)
    return by_fold[close[0]] if close else None
