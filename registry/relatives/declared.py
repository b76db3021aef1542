"""The parents that a header names, and whether a registered model is meant. Names are compared as folded words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from organs.registry.catalog.vocabulary import folded_words

PARENTS_MAX = 64
PARENT_KEYS = tuple(
    f"general.base_model.{number}.{part}"
    for number in range(PARENTS_MAX)
    for part in ("organization", "name", "version", "repo_url")
)
IDENTITY_KEYS = ("general.organization", "general.version", "general.repo_url")


@dataclass(frozen=True, slots=True)
class DeclaredParent:
    """A parent as `general.base_model.{number}.*` describes it; what is not given is empty."""

    organization: str
    name: str
    version: str
    repo_url: str

    @property
    def text(self) -> str:
        """`organization/name version`, as far as they are given, else the address; empty when neither is there."""
        text = "/".join(part for part in (self.organization, self.name) if part)
        return f"{text} {self.version}" if text and self.version else text or self.repo_url


def parent_in_words(text: str) -> DeclaredParent:
    """The parent that somebody means who writes its name, as `organization/name` or without, or its address."""
    if text.lower().startswith(("http://", "https://")):
        return DeclaredParent("", "", "", text)
    organization, _, name = text.partition("@")[0].rpartition("/")
    return DeclaredParent(organization, name, "", "")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a registered model goes by; what is not given is empty."""

    namespace: str
    name: str
    title: str
    architecture: str = ""
    organization: str = ""
    version: str = ""
    repo_url: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Match:
    """How well an identity answers a declaration; the greater the better."""

    same_address: bool
    same_organization: bool
    same_version: bool


def numbered_parents(texts: Mapping[str, str]) -> Iterator[tuple[int, DeclaredParent]]:
    """The parents that the strings of a header name, by number, each once; without name and address it is none."""
    known: set[str] = set()
    for number in range(PARENTS_MAX):
        prefix = f"general.base_model.{number}"
        parts = (texts.get(f"{prefix}.{key}", "") for key in ("organization", "name", "version", "repo_url"))
        parent = DeclaredParent(*parts)
        if parent.text and parent.text not in known:
            known.add(parent.text)
            yield number, parent


def match(declared: DeclaredParent, identity: Identity) -> Match | None:
    """How well `identity` answers `declared`; None when another model is meant.

    The name must be equal to its name or title, and so must an organization and a version that both give (another
    organization passes where the namespace or the address says the same). Without a name the address must be that of
    the model, or end in its `namespace/name`.
    """
    same_address = _same_address(declared.repo_url, identity)
    if not (_same_name(declared, identity) if declared.name else same_address):
        return None
    same_version = _agreement(declared.version, identity.version)
    same_organization = _agreement(declared.organization, identity.organization)
    if not same_organization and _agreement(declared.organization, identity.namespace):
        same_organization = True
    if same_version is False or (same_organization is False and not same_address):
        return None
    return Match(same_address, bool(same_organization), bool(same_version))


def folded(text: str) -> str:
    """The words of `text` without what case, accents and punctuation make of them."""
    return " ".join(folded_words(text))


def _same_name(declared: DeclaredParent, identity: Identity) -> bool:
    return folded(declared.name) in {folded(identity.name), folded(identity.title)} - {""}


def _same_address(address: str, identity: Identity) -> bool:
    if not folded(address):
        return False
    if folded(address) == folded(identity.repo_url):
        return True
    return address.rstrip("/").lower().split("/")[-2:] == [identity.namespace.lower(), identity.name.lower()]


def _agreement(first: str, second: str) -> bool | None:
    """Whether two texts say the same; None when one of them says nothing."""
    return folded(first) == folded(second) if folded(first) and folded(second) else None


def stated_relation(kind: str, base: str, declared: Iterable[tuple[str, str]]) -> str:
    """Return the relation to the `base` that a contributor states for a model of `kind`, before weights are compared.

    `declared` are the texts and relations of the parents in the header: the header's word counts for a parent that it
    names itself, so that a quantisation stays one.
    """
    if kind == "adapter":
        return "adapter"
    wanted = folded(base.partition("@")[0].rpartition("/")[2])
    named = (relation for text, relation in declared if folded(text.rpartition("/")[2]) == wanted)
    return next(named, "finetune")
