"""Registered chimeras: lists, the leaderboard, the complete description of a chimera, and the card of a model."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from html import escape

import msgspec
from sqlalchemy.orm import Session

from organs.registry.amounts import NO_VALUE, count_text, size_text, theta_text
from organs.registry.anatomy import in_block, place_of
from organs.registry.catalog.queries import chimeras as chimera_rows
from organs.registry.catalog.queries.chimeras import chimera_of, recorded_children, recorded_parents, stored_origins
from organs.registry.catalog.queries.model_contents import files_of, metadata_of, metadata_of_models, placements_of
from organs.registry.catalog.queries.relatives import models_by_id
from organs.registry.catalog.rows import entity_of
from organs.registry.catalog.tables import ChimeraRow, ModelFileRow, ModelRow, VerdictRow
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.compose.licenses import (
    NOT_STATED,
    combined_license,
    differing_license,
    is_license_in_file,
)
from organs.registry.compose.metadata import LICENSE_KEY
from organs.registry.compose.plan import summarize_changes
from organs.registry.compose.recipe import recipe_file, recipe_from_json, recipe_python, recipe_yaml, with_versions
from organs.registry.entities import model as model_entities
from organs.registry.entities.base import ITEMS_MAX, Digest, prepared
from organs.registry.entities.chimera import (
    NEWEST,
    Chimera,
    ChimeraPage,
    ChimeraSummary,
    ComputedOrgan,
    DerivedModel,
    GraftedPart,
    Origins,
)
from organs.registry.entities.finding import WITHDRAWN_CODES, Finding, Severity, in_order, stored_findings
from organs.registry.entities.gain import Gain, Leaderboard
from organs.registry.entities.plan import (
    GRAFTED,
    PLACED,
    GraftedExperts,
    ParentModel,
    PlanPart,
    RecipeFile,
    Screen,
)
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.entities.validation import SourceDivergence, Verdict, VerdictReport
from organs.registry.relatives.lineage import origin_findings
from organs.registry.search import gains as gain_rows
from organs.registry.search.filters import Names
from organs.registry.search.language import on_term


def chimera_page(
    session: Session, limit: int, after: str | None = None, *, order: str = NEWEST, mixed: bool = False
) -> ChimeraPage:
    """Return the next `limit` visible chimeras after `after`, by one of `ORDERS`. Raises BadQuery.

    With `mixed`, those that are only quantisations are left out.
    """
    rows, next_page = chimera_rows.chimeras_in_order(session, order, limit, after, mixed=mixed)
    ids = [model.id for model, _ in rows]
    verdicts = chimera_rows.strongest_verdicts(session, ids)
    withdrawn = chimera_rows.withdrawn_ancestors(session, ids)
    gains, blocks = chimera_rows.gains_of_chimeras(session, ids), chimera_rows.blocks_of_models(session, ids)
    items = []
    for model, row in rows:
        origins, verdict = stored_origins(row), verdicts.get(model.id)
        look = chimera_rows.parsed_quick_look(row.quick_look)
        ancestors = withdrawn.get(model.id, ())
        items.append(
            ChimeraSummary(
                name=model.full_name,
                title=model.title,
                lock_id=Digest(row.lock_id),
                parents=origins.parents,
                blocks=blocks.get(model.id, 0),
                parts=_grafted_parts(origins),
                withdrawn_parents=tuple(item.model.full_name for item in ancestors if item.child_id == model.id),
                withdrawn_ancestors=tuple(item.model.full_name for item in ancestors if item.child_id != model.id),
                verdict=None if verdict is None else verdict.verdict,
                quick_look=None if look is None else look.sentence,
                size_bytes=model.size_bytes,
                mean_theta=model.mean_theta,
                created_at=model.created_at,
                gains=tuple(entity_of(Gain, gain) for gain in gains.get(model.id, ())),
            )
        )
    return ChimeraPage(items=tuple(items), next=next_page)


def leaderboard(
    session: Session, base: ModelRow | None, on: str | None, limit: int, after: str | None = None
) -> Leaderboard:
    """Return the next `limit` validated chimeras after the cursor `after`, by their largest settled gain.

    Only gains over the model `base` count, and only on the texts `on`: names of texts or of groups of texts, separated
    by commas. None means any base, and any text. Raises BadQuery.
    """
    notes: list[str] = []
    texts = Names(session, notes).texts([] if on is None else [on_term(on)])
    gains = gain_rows.GainFilter(texts, None if base is None else base.id)
    page = gain_rows.leaderboard(session, gains, limit, after, _recipe_of)
    return msgspec.structs.replace(page, notes=tuple(notes))


def _recipe_of(row: ChimeraRow) -> RecipeFile:
    """Return the recipe of a chimera with the versions of its parents."""
    return recipe_file(with_versions(recipe_from_json(row.recipe), stored_origins(row).parents))


def chimera_by_lock(session: Session, prefix: str) -> Chimera:
    """Return the chimera whose lock has a digest that begins with `prefix`.

    Several models with the same bytes can have the same lock: the oldest is returned. Raises BadDigest, NotFound,
    Ambiguous.
    """
    chimera = chimera_of_model(session, chimera_rows.chimeras_by_lock(session, prefix)[0])
    assert chimera is not None
    return chimera


def chimera_of_model(session: Session, model: ModelRow) -> Chimera | None:
    """Return the description of `model` as a chimera; None if it was not composed in this registry."""
    row = chimera_of(session, model.id)
    if row is None:
        return None
    (file,) = files_of(session, model.id)
    recipe = recipe_from_json(row.recipe)
    # Only models that are still registered have a license.
    licenses = {parent.full_name: parent.license for parent, _ in recorded_parents(session, model.id)}
    parents = tuple(
        ParentModel(model=label, license=licenses.get(label), acts=acts)
        for label, acts in stored_origins(row).acts().items()
    )
    parts = _parts(session, model, row)
    # The findings about yanked and removed models are those of now.
    planned = [finding for finding in stored_findings(row.findings) if finding.code not in WITHDRAWN_CODES]
    context_key = f"{model.architecture}.context_length"
    context = next((item.value for item in metadata_of(session, model.id) if item.key == context_key), "")
    context_length = int(context) if context.isdecimal() else None
    made_into: dict[str, list[str]] = {}
    for child, act in recorded_children(session, model.id):
        made_into.setdefault(child.full_name, []).append(act)
    chimera = Chimera(
        model=model.full_name,
        also=tuple(name for name in chimera_rows.names_of_lock(session, row.lock_id) if name != model.full_name),
        lock_id=Digest(row.lock_id),
        title=model.title,
        architecture=model.architecture,
        tensors=model.tensors,
        size_bytes=model.size_bytes,
        mean_theta=model.mean_theta,
        created_at=model.created_at,
        file=entity_of(model_entities.ModelFile, file),
        recipe=recipe_file(recipe),
        recipe_yaml=recipe_yaml(recipe),
        parents=parents,
        license=combined_license({parent.model: parent.license for parent in parents}).text,
        findings=in_order([*findings_beside_file(session, model), *planned], recipe.accept),
        screen=None if row.screen is None else msgspec.json.decode(row.screen, type=prepared(Screen)),
        quick_look=chimera_rows.parsed_quick_look(row.quick_look),
        changes=summarize_changes(parts),
        parts=parts,
        computed=_computed(session, model, parts),
        verdicts=tuple(_verdict(verdict) for verdict in chimera_rows.verdicts_of(session, model.id)),
        made_into=tuple(DerivedModel(model=name, acts=tuple(acts)) for name, acts in made_into.items()),
        modelfile=modelfile(model.full_name, file.name, model.title, context_length),
        llama_cli=llama_cli(file.name),
        assemble=assemble_command(model.full_name, file.name),
        python=recipe_python(recipe, file.name),
        card="",
    )
    return msgspec.structs.replace(chimera, card=_card(session, model, [(file.name, file)], chimera))


def _grafted_parts(origins: Origins) -> tuple[GraftedPart, ...]:
    """Return the parts that differ from the base, by model and type."""
    blocks: dict[tuple[int, str], set[int | None]] = {}
    for name, (number, acts) in origins.by_tensor().items():
        place, others = place_of(name), (*origins.merged.get(name, ()), *origins.adapters.get(name, ()))
        givers = {*others, *(parent for parent, _ in origins.experts.get(name, ()))}
        if not others or GRAFTED in acts:
            givers.add(number)
        for parent in givers:
            blocks.setdefault((parent, place.type.value), set()).add(place.block)
    return tuple(
        GraftedPart(
            model=origins.parents[parent],
            type=kind,
            blocks=tuple(sorted(numbers, key=lambda number: (number is None, number or 0)))[:ITEMS_MAX],
        )
        for (parent, kind), numbers in sorted(blocks.items())
    )


def findings_beside_file(session: Session, model: ModelRow) -> list[Finding]:
    """Return the findings that the file of a model cannot contain, because its bytes never change.

    These are a stated license that differs from the header's, and parents that were yanked or removed.
    """
    return [*license_findings(model, stored_license(session, model)), *origin_findings(session, model)]


def license_findings(model: ModelRow, in_header: str | None) -> list[Finding]:
    """Return a finding if the stated license, which contributors can edit, differs from the license in the header."""
    sentence = differing_license(model.license, in_header)
    return [] if sentence is None else [Finding(Severity.INFO, "license-differs", sentence)]


def stored_license(session: Session, model: ModelRow) -> str | None:
    """Return the license in the header of a model's file, shortened as a stated license is."""
    text = metadata_of_models(session, [model.id], [LICENSE_KEY])[model.id].get(LICENSE_KEY)
    return None if text is None else shown_text(text, LICENSE_MAX)


def _parts(session: Session, model: ModelRow, row: ChimeraRow) -> tuple[PlanPart, ...]:
    """Return the organs that are not the base's own. The base's organs are left out if the base is not visible."""
    origins = stored_origins(row)
    rows = placements_of(session, row.base_model_id) if models_by_id(session, [row.base_model_id]) else ()
    of_base = {placement.name: placement for placement, *_ in rows}
    changed = origins.by_tensor()
    parts = []
    for placement, _, digest, _ in placements_of(session, model.id):
        name = placement.name
        if name not in changed:
            continue
        number, acts = changed[name]
        from_block = origins.from_block(place_of(name))
        before = of_base.get(name if from_block is None else in_block(name, from_block))
        if from_block is not None and number:  # of another model
            before = placement if acts == (PLACED,) else None
        parts.append(
            PlanPart(
                name=name,
                type=placement.type,
                tower=placement.tower,
                block=placement.block,
                slot=placement.slot,
                model=origins.parents[number],
                acts=acts,
                dtype_before=(before or placement).dtype,
                dtype=placement.dtype,
                theta_before=None if before is None else before.theta,
                theta=placement.theta,
                spectral_signal=placement.spectral_signal,
                size_bytes_before=(before or placement).size_bytes,
                size_bytes=placement.size_bytes,
                digest=Digest(digest),
                merged=tuple(origins.parents[donor] for donor in origins.merged.get(name, ())),
                adapters=tuple(origins.parents[adapter] for adapter in origins.adapters.get(name, ())),
                experts=tuple(
                    GraftedExperts(model=origins.parents[donor], experts=experts)
                    for donor, experts in origins.experts.get(name, ())
                ),
                purified_experts=origins.purified_experts.get(name, ()),
                from_block=from_block if PLACED in acts else None,
                pruned=origins.pruned.get(name, ()),
            )
        )
    return tuple(parts)


def _computed(session: Session, model: ModelRow, parts: Sequence[PlanPart]) -> tuple[ComputedOrgan, ...]:
    """Return the computed organs: the computation, its inputs, and θ before and after."""
    computations = chimera_rows.computations_in(session, model.id)
    thetas = chimera_rows.thetas_of(session, {item.key for item in computations.values()})
    return tuple(
        ComputedOrgan(
            name=part.name,
            type=part.type,
            block=part.block,
            slot=part.slot,
            model=part.model,
            digest=part.digest or Digest(""),
            theta=part.theta,
            **msgspec.structs.asdict(computations[part.name].made_organ(thetas)),
        )
        for part in parts
        if part.name in computations and (set(part.acts) - {GRAFTED} or computations[part.name].experts)
    )


def from_source_of(session: Session, model_id: int) -> SourceDivergence | None:
    """Return how far a quantisation is from its source, by its strongest verdict, else by its quick look."""
    reports = (_verdict(row).report for row in chimera_rows.verdicts_of(session, model_id))
    found = next((report.from_source for report in reports if report is not None and report.from_source), None)
    look = None if found is not None else chimera_rows.stored_quick_look(session, model_id)
    return found if look is None else look.from_source


def _verdict(row: VerdictRow) -> Verdict:
    try:
        report = msgspec.json.decode(row.report, type=prepared(VerdictReport))
    except msgspec.DecodeError:  # written by another version of the program: the verdict and the reason are still valid
        report = None
    return Verdict(
        verdict=row.verdict, reason=row.reason, runtime=row.runtime, report=report, created_at=row.created_at
    )


CARD_VERSION = 8
"""Increased when the text of cards changes, because the text of a published revision must not change."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}", re.ASCII)
_SPECIAL = re.compile(r"[\\`*_{}\[\]#!|~@$^]|:(?=//)|(?<=www)\.", re.IGNORECASE)
"""Characters that begin markup, a table cell, an entity or a link in the Markdown of the hub."""


CONTEXT_MAX = 4096
"""Largest context of a Modelfile, in tokens: the default of runtimes."""
PROMPT = "Once upon a time"
TITLE_MAX = 100


def llama_cli(file: str) -> str:
    """Return the command that runs a file with llama.cpp."""
    return f"llama-cli -m {shlex.quote(file)} -p {shlex.quote(PROMPT)} -n 64"


def assemble_command(model: str, file: str) -> str:
    """Return the command that writes the file of a model."""
    return f"organ assemble {model} -o {shlex.quote(file)}"


def modelfile(model: str, file: str, title: str | None, context_length: int | None) -> str:
    """Return a Modelfile of three lines. The GGUF file must be in the same folder.

    The `title` is that of the header: any text, which comes from outside. The context is in tokens.
    """
    shown = " ".join("".join(item if item.isprintable() else " " for item in title or "").split())
    tokens = min(context_length or CONTEXT_MAX, CONTEXT_MAX)
    about = f"# {model}, {shown[:TITLE_MAX]}" if shown else f"# {model}"
    return f"{about}\nFROM ./{file}\nPARAMETER num_ctx {tokens}\n"


def card(session: Session, model: ModelRow, files: Sequence[tuple[str, ModelFileRow]] | None = None) -> str:
    """Return the README of `model`, without verdicts, which come later; `files` has the names in downloads."""
    if files is None:
        files = [(file.name, file) for file in files_of(session, model.id)]
    return _card(session, model, files, chimera_of_model(session, model), with_verdicts=False)


def _card(
    session: Session,
    model: ModelRow,
    files: Sequence[tuple[str, ModelFileRow]],
    chimera: Chimera | None,
    *,
    with_verdicts: bool = True,
) -> str:
    # Programs read the front matter, so it has only values of one plain word.
    lines = ["---", "library_name: gguf"]
    if model.license and _PLAIN.fullmatch(model.license):
        lines.append(f'license: "{model.license.lower()}"')
    if model.architecture and _PLAIN.fullmatch(model.architecture):
        lines += ["tags:", f'- "{model.architecture.lower()}"']
    lines += ["---", "", f"# {_text(model.name)}", ""]
    for about in (model.title if model.title != model.name else None, model.description):
        lines += [_text(about), ""] if about else []
    facts = _facts(model, stored_license(session, model))
    lines += ["| | |", "|---|---|", *(f"| {label} | {_text(value)} |" for label, value in facts), ""]
    lines += ["| file | size | SHA-256 |", "|---|---|---|"]
    lines += [f"| {_text(name)} | {size_text(file.size_bytes)} | `{file.sha256}` |" for name, file in files]
    findings = findings_beside_file(session, model) if chimera is None else []
    lines += ["", "## Findings", "", *map(_finding_line, findings)] if findings else []
    lines += [] if chimera is None else ["", *_chimera(chimera, with_verdicts=with_verdicts)]
    lines += ["", "Written by the organ registry from the registered data. θ is the shape of a weight distribution,"]
    lines += ["from uniform (0°) to heavy tails (90°); it does not grade a model.", ""]
    return "\n".join(lines)


def _finding_line(finding: Finding) -> str:
    return f"- {finding.severity.value}, {_text(finding.code)}: {_text(finding.sentence)}"


def _facts(model: ModelRow, in_header: str | None) -> list[tuple[str, str]]:
    in_file = [] if is_license_in_file(model.license, in_header) else [("license in the file", in_header or NOT_STATED)]
    state = [("yanked", model.state_reason or "no reason was given")] if model.state == "yanked" else []
    rows = [
        ("registered as", model.full_name),
        ("digest", f"sha256:{model.digest}"),
        ("architecture", model.architecture or "not stated"),
        ("license", model.license or NOT_STATED),
        *in_file,
        ("parameters", count_text(model.parameters)),
        ("tensors", str(model.tensors)),
        ("size", size_text(model.size_bytes)),
        ("mean θ", theta_text(model.mean_theta)),
        *state,
    ]
    return rows if model.complete else [*rows, ("complete", "no: it has only some tensors of its model")]


def _chimera(chimera: Chimera, *, with_verdicts: bool) -> list[str]:
    """Return the sections on parents with licenses, findings, θ, verdict, screen, recipe and use."""
    lines = ["## Parents", "", "| model | license | contribution |", "|---|---|---|"]
    lines += [
        _row(parent.model, parent.license or "not stated", ", ".join(parent.acts) or "its own tensors")
        for parent in chimera.parents
    ]
    lines += ["", f"Licenses: {_text(chimera.license)}", ""]
    lines += ["| from | type | blocks | tensors | done | θ before | θ after |", "|---|---|---|---|---|---|---|"]
    for change in chimera.changes:
        thetas = map(theta_text, (change.theta_before, change.theta))
        blocks, organs = change.blocks or NO_VALUE, str(change.organs)
        lines.append(_row(change.givers_text, change.type, blocks, organs, change.acts_text, *thetas))
    findings = [finding for finding in chimera.findings if finding.severity is not Severity.INFO]
    findings += [finding for finding in chimera.findings if finding.code.startswith("license-")]
    lines += ["", "## Findings", ""]
    lines += [*map(_finding_line, findings)]
    lines += [] if findings else ["No warnings."]
    if with_verdicts:
        measured = "Not run yet."
        if chimera.verdicts:
            best = chimera.verdicts[0]
            measured = f"Verdict in {_text(best.runtime)}: {best.verdict}. {_text(best.reason)}"
        elif (look := chimera.quick_look) is not None:
            measured = f"Quick look in {_text(look.runtime)}: {_text(look.sentence)}"
        lines += ["", "## Measurement", "", measured]
    if chimera.screen is not None:
        lines += ["", "## From the weights, before it was made", "", _text(chimera.screen.sentence)]
    lines += ["", "## Recipe", "", *_code(chimera.recipe_yaml)]
    lines += ["", f"The lock is `sha256:{chimera.lock_id}`; the same lock gives the same bytes."]
    lines += ["", "## Use", "", *_code(chimera.llama_cli), "", "As a Modelfile:", "", *_code(chimera.modelfile)]
    return lines


def _row(*cells: str) -> str:
    return f"| {' | '.join(map(_text, cells))} |"


def _code(text: str) -> list[str]:
    """Return lines of code, indented: a text can end a fenced block, but not an indented one."""
    return ["    " + "".join(item if item.isprintable() else " " for item in line) for line in text.splitlines()]


def _text(value: str) -> str:
    """Return `value` on one line, escaped for Markdown and HTML."""
    line = " ".join("".join(item if item.isprintable() else " " for item in value).split())
    return escape(_SPECIAL.sub(r"\\\g<0>", line), quote=False)
