"""Software bills of materials (SBOM): what a model was made from, as a CycloneDX document.

The document has the model as its main component, each of its ancestors that the registry knows as a component, and who
depends on whom. `cyclonedx-python-lib`, which writes it, has no model cards, formulations and compositions of
CycloneDX yet: what belongs there is in properties, whose names begin with `organ:` (docs/chimeras.md lists them).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol
from uuid import UUID, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import (
    AttachedText,
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.license import License, LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.spdx import fixup_id, is_expression
from packageurl import PackageURL

from organs.registry.catalog.vocabulary import shown_text
from organs.registry.compose.licenses import AND, NO_ASSERTION, OTHER
from organs.registry.compose.metadata import IMATRIX_GROUP, LICENSE_KEY
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.lineage import merged_edges
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.errors import Incomplete, NotFound
from organs.registry.kinds import FileKind

if TYPE_CHECKING:
    from organs.registry.entities.chimera import Chimera
    from organs.registry.entities.model import Model, RuntimeText
    from organs.registry.entities.validation import QuickLook, VerdictReport

MODELS_MAX = 500
"""The most models in one document, by default. The nearest ancestors come first."""
TOOL = "organ-registry"
COMPOSED = "Composed in an organ registry from the recipe in organ:recipe. The lock gives the same bytes again."
"""The note of a pedigree."""

_SERIAL_NUMBERS = UUID("5a3a3f0c-6c1e-5f0e-9d3f-0b8f4f0a7c11")
"""The name space of serial numbers: that of a model follows from its digest."""
_ADDRESS = re.compile(
    r"https?://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})(?::[0-9]{1,5})?"
    r"(?:[/?](?:[A-Za-z0-9._~!$&()*+,;=:@/?-]|%[0-9A-Fa-f]{2}){0,2000})?"
    r"(?:#(?:[A-Za-z0-9._~!$&()*+,;=:@/?-]|%[0-9A-Fa-f]{2}){0,500})?"
)
"""Addresses that need no escapes. Others, from headers of strangers, are left out."""
_SPDX_WORD = re.compile(r"[A-Za-z0-9.+-]+")
_REFERENCE = re.compile(r"\bLicenseRef-[A-Za-z0-9.-]+")
_OPERATORS = {word.lower(): word for word in ("AND", "OR", "WITH")}
_REFERENCES = {
    "general.url": ExternalReferenceType.WEBSITE,
    "general.repo_url": ExternalReferenceType.DISTRIBUTION,
    "general.source.url": ExternalReferenceType.SOURCE_DISTRIBUTION,
    "general.source.repo_url": ExternalReferenceType.SOURCE_DISTRIBUTION,
    "general.license.link": ExternalReferenceType.LICENSE,
}
"""Entries of headers with addresses."""
_FACTS_APART = ("kind", "architecture", "license", "parameters")
"""Facts of a model that the document has elsewhere, or exactly."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """A model from which another one was made, and how."""

    name: str
    """Its name in the registry, or the text with which a header names it."""
    is_registered: bool
    how: tuple[tuple[str, str], ...]
    """Names and values of properties."""
    license: str | None = None
    """The license that the registry recorded beside the model itself."""


@dataclass(slots=True)
class _Family:
    """The components of a model and of its ancestors, by their references in the document."""

    components: dict[str, Component] = field(default_factory=dict)
    edges: dict[str, list[tuple[str, _Origin]]] = field(default_factory=dict)
    """The parents of each registered model."""
    left_out: set[tuple[bool, str]] = field(default_factory=set)


class BillSource(Protocol):
    """What a bill of materials reads: a registry, or a part of it that is limited in time."""

    def model(self, name: str) -> Model:
        """Return a model."""

    def chimera(self, lock: str) -> Chimera:
        """Return the chimera of a lock."""


def bill_of_materials(registry: BillSource, name: str, models_max: int = MODELS_MAX) -> str:
    """Return the bill of materials of the model `name` as CycloneDX 1.7 in JSON, with at most `models_max` models.

    The same registered data give the same text; its time is that of the registration. Raises what `Registry.model`
    raises.
    """
    main, family = registry.model(name), _Family()
    _collect(registry, main, family, models_max)
    components = family.components
    for ref, edges in family.edges.items():
        if edges:
            pedigree = components[ref].pedigree or Pedigree()
            pedigree.ancestors.update(_ancestor(components[parent], origin) for parent, origin in edges)
            components[ref].pedigree = pedigree
    root = components[main.name]
    if family.left_out:
        root.properties.add(_property("ancestors-left-out", len(family.left_out)))
    tool = Component(name=TOOL, version=_version(), type=ComponentType.APPLICATION, bom_ref=f"tool:{TOOL}")
    bom = Bom(
        serial_number=uuid5(_SERIAL_NUMBERS, main.digest),
        metadata=BomMetaData(timestamp=main.created_at, tools=ToolRepository(components=[tool]), component=root),
        components=[component for component in components.values() if component is not root],
    )
    for ref, edges in family.edges.items():
        bom.register_dependency(components[ref], [components[parent] for parent, _ in edges])
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_7).output_as_string(indent=2) + "\n"


def _collect(registry: BillSource, main: Model, family: _Family, models_max: int) -> None:
    """Add `main` and its ancestors to `family`, the nearest first, at most `models_max`."""
    refs = {(True, main.name): main.name}
    waiting: deque[tuple[str, Sequence[_Origin]]] = deque()

    def add(model: Model) -> None:
        chimera = None if model.lock_id is None else registry.chimera(model.lock_id)
        family.components[model.name] = _component(model, chimera)
        waiting.append((model.name, tuple(_origins(model, chimera))))

    add(main)
    while waiting:
        ref, origins = waiting.popleft()
        edges = family.edges[ref] = []
        for origin in origins:
            key = (origin.is_registered, origin.name)
            if key not in refs and len(refs) >= models_max:
                family.left_out.add(key)
                continue
            if key not in refs:
                model = _found(registry, origin)
                if model is None:
                    refs[key] = f"{'' if origin.is_registered else 'declared:'}{_line(origin.name)}"
                    family.components[refs[key]] = _unknown(refs[key], origin)
                else:
                    refs[key] = model.name
                    if model.name not in family.components:
                        add(model)
            if refs[key] not in (ref, *(parent for parent, _ in edges)):
                edges.append((refs[key], origin))


def _found(registry: BillSource, origin: _Origin) -> Model | None:
    """Return the model of an origin; None if it is not registered, was removed, or may not be seen."""
    try:
        return registry.model(origin.name) if origin.is_registered else None
    except (NotFound, Incomplete):
        return None


def _origins(model: Model, chimera: Chimera | None) -> Iterator[_Origin]:
    """Yield the parents of a model: those of the recipe of a chimera, else those that are declared or proved.

    Parents that only the likeness of the weights suggests are left out.
    """
    if chimera is None:
        for edge in merged_edges(model.lineage):
            name = edge.model or edge.text
            if edge.direction == "parent" and edge.evidence != "measured" and name:
                yield _Origin(name, edge.model is not None, (("relation", edge.relation), ("evidence", edge.evidence)))
        return
    for number, parent in enumerate(chimera.parents):
        how = [("relation", "base")] if not number else []
        how += [("relation", act) for act in parent.acts]
        for change in chimera.changes:
            if parent.model in (*change.givers, *(graft.model for graft in change.experts)):
                where = "" if change.blocks is None else f" in blocks {change.blocks}"
                how.append(("organs", f"{change.organs} of type {change.type}{where}: {change.acts_text}"))
        yield _Origin(parent.model, True, tuple(how), parent.license)
    if chimera.recipe.imatrix is not None:
        yield _Origin(chimera.recipe.imatrix, True, (("relation", FileKind.IMATRIX.value),))


def _component(model: Model, chimera: Chimera | None) -> Component:
    """Return the component of a registered model; its pedigree has no ancestors yet."""
    path, _, number = model.name.rpartition("@")
    group, _, own_name = path.rpartition("/")
    single = model.files[0].sha256 if len(model.files) == 1 else None
    metadata = {entry.key: entry.value for entry in model.metadata}
    return Component(
        type=ComponentType.DATA if model.kind == FileKind.IMATRIX else ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=model.name,
        group=group or None,
        name=own_name,
        version=number,
        description=_clean(model.description) if model.description else None,
        licenses=_licenses(model.license, metadata, model.texts),
        hashes=[] if single is None else [HashType(alg=HashAlgorithm.SHA_256, content=single)],
        purl=PackageURL("generic", group, own_name, number, {} if single is None else {"checksum": f"sha256:{single}"}),
        external_references=[
            ExternalReference(type=kind, url=XsUri(metadata[key]))
            for key, kind in _REFERENCES.items()
            if _ADDRESS.fullmatch(metadata.get(key, ""))
        ],
        components=[
            Component(
                type=ComponentType.FILE,
                bom_ref=f"{model.name}#{position}",
                name=_line(file.name),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=file.sha256)],
                properties=[_property("size-bytes", file.size_bytes)],
            )
            for position, file in enumerate(model.files, 1)
        ],
        properties=[_property(*pair) for pair in _facts(model, chimera, metadata)],
        tags=[_line(tag) for tag in model.tags if tag.strip()],
        pedigree=None if chimera is None else Pedigree(notes=COMPOSED),
    )


def _facts(model: Model, chimera: Chimera | None, metadata: dict[str, str]) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the properties of a model."""
    yield "kind", model.kind
    yield "digest", f"sha256:{model.digest}"
    yield "license", model.license or NO_ASSERTION
    yield "parameters", model.parameters
    yield "tensors", model.tensors
    yield "size-bytes", model.size_bytes
    for name, value in (("architecture", model.architecture), ("title", model.title)):
        if value:
            yield name, value
    if model.state != "visible":
        yield "state", f"{model.state}: {model.state_reason or 'no reason was given'}"
    for name, fact in model.facts.items():
        if name not in _FACTS_APART:
            number = fact.replace(",", "")  # 8,192 is for people
            yield name.replace(" ", "-"), number if number.isdecimal() else fact
    yield from ((key, value) for key, value in metadata.items() if key.startswith(IMATRIX_GROUP))
    findings = model.findings if chimera is None else chimera.findings
    yield from ((f"finding:{one.code}", f"{one.severity.value}: {one.sentence}") for one in findings if _matters(one))
    if model.from_source is not None:
        yield "divergence-from-source", f"{model.from_source.divergence:.6g}"
        yield "same-top-as-source", f"{model.from_source.same_top:.6g}"
    if chimera is not None:
        yield "lock", f"sha256:{chimera.lock_id}"
        yield "recipe", chimera.recipe_yaml
        yield from _measured(chimera)


def _measured(chimera: Chimera) -> Iterator[tuple[str, object]]:
    """Yield the strongest verdict on a chimera, else its quick look, with the numbers of each text."""
    report: VerdictReport | QuickLook | None = chimera.quick_look
    if chimera.verdicts:
        best = chimera.verdicts[0]
        report = best.report
        yield "verdict", f"{best.verdict}: {best.reason}"
        yield "runtime", best.runtime
    elif chimera.quick_look is not None:
        yield "quick-look", chimera.quick_look.sentence
        yield "runtime", chimera.quick_look.runtime
    for text in () if report is None else report.texts:
        numbers = {"perplexity-ratio": text.ratio, "perplexity-ratio-margin": text.ratio_margin}
        numbers |= {"divergence": text.divergence}
        yield from ((f"{name}:{text.name}", f"{value:.6g}") for name, value in numbers.items() if value is not None)


def _matters(finding: Finding) -> bool:
    return finding.severity is not Severity.INFO or finding.code.startswith("license")


def _ancestor(component: Component, origin: _Origin) -> Component:
    """Return the short form of a component that a pedigree has, with what it gave."""
    return Component(
        type=component.type,
        group=component.group,
        name=component.name,
        version=component.version,
        hashes=component.hashes,
        licenses=component.licenses,
        purl=component.purl,
        properties=[_property("ref", component.bom_ref.value or ""), *(_property(*pair) for pair in origin.how)],
    )


def _unknown(ref: str, origin: _Origin) -> Component:
    """Return the component of a parent of which the registry has only the name."""
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=ref,
        name=_line(origin.name) or "unnamed",
        licenses=_licenses(origin.license, {}),
        properties=[_property("registered", "false")],
    )


def _licenses(text: str | None, metadata: Mapping[str, str], texts: Sequence[RuntimeText] = ()) -> Sequence[License]:
    """Return the licenses that `text` names.

    These are an SPDX id or expression; else a license for each part, by its SPDX id or by its name. The `metadata` of
    the file's header has the name and the address of a license without an id, and a tool may keep its text in `texts`.
    """
    stated = _line(shown_text(text or "", LICENSE_MAX)) or NO_ASSERTION
    spelled = _SPDX_WORD.sub(lambda word: fixup_id(word[0]) or _OPERATORS.get(word[0].lower(), word[0]), stated)
    whole = _license(spelled)
    if isinstance(whole, LicenseExpression) or whole.id is not None:
        return [whole]
    if AND in stated:
        parts = dict.fromkeys(part.strip() for part in spelled.split(AND))
        # With brackets or alternatives, it is not clear which parts belong together.
        return [whole] if any(" " in part or not part for part in parts) else list(map(_license, parts))
    if stated.lower() == OTHER:
        whole.name = _line(metadata.get(f"{LICENSE_KEY}.name", "")) or stated
    link = metadata.get(f"{LICENSE_KEY}.link", "")
    whole.url = XsUri(link) if _ADDRESS.fullmatch(link) else None
    kept = next((item.text for item in texts if item.kind == "license"), None)
    whole.text = None if kept is None else AttachedText(content=_clean(kept))
    return [whole]


def _license(text: str) -> License:
    acknowledgement = None if text.upper() == NO_ASSERTION else LicenseAcknowledgement.DECLARED
    known, references = _REFERENCE.subn("MIT", text)  # the library does not know references in expressions
    if references and " " in text and is_expression(known):
        return LicenseExpression(text, acknowledgement=acknowledgement)
    return LicenseFactory().make_from_string(text, license_acknowledgement=acknowledgement)


def _property(name: str, value: object) -> Property:
    return Property(name=f"organ:{_line(name)}", value=_clean(str(value)))


def _line(text: str) -> str:
    """Return a text from outside on one line."""
    return " ".join(_clean(text).split())


def _clean(text: str) -> str:
    """Return a text from outside, with another character in the place of each that cannot be shown."""
    return "".join(
        item if item.isprintable() or item in "\n\t" else " " if item.isspace() else "\N{REPLACEMENT CHARACTER}"
        for item in text
    )


def _version() -> str | None:
    try:
        return version(TOOL)
    except PackageNotFoundError:  # run from its source
        return None
