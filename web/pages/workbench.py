"""Composing on one screen: the donors of a base, its network, in which a click gives parts, and the chimera so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flask import g, url_for
from msgspec.structs import asdict
from sqlalchemy.orm import Session

from organs.registry.amounts import NO_VALUE, weight_change_text
from organs.registry.anatomy import type_name
from organs.registry.catalog.queries.chimeras import chimeras_by_lock, stored_quick_look, strongest_verdicts
from organs.registry.catalog.queries.model_lists import composed_among, quantisations_of
from organs.registry.catalog.queries.model_names import model_by_name, model_by_text
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.assignment import TAKEN, Assignment, Cell, Giver, is_same_name
from organs.registry.compose.blend_steps import BLEND_DEFAULT, Setting, SettingRule
from organs.registry.compose.chimeras import leaderboard
from organs.registry.compose.recipe import (
    ENCODINGS,
    GIVEN,
    PROVED,
    PurifyMethod,
    Recipe,
    recipe_findings,
    recipe_python,
)
from organs.registry.compose.screen import KNOWN, ChangeKind
from organs.registry.compose.selection import BlockRange, Selection, range_text, within
from organs.registry.compose.steps import read_steps, step_paths
from organs.registry.entities.finding import PLAN_CODES, Finding, Severity
from organs.registry.entities.plan import CANDIDATE_ORDERS, CellTotals, CompositionState, FitCount
from organs.registry.errors import BadQuery, BadRecipe, NotFound, TooSlow
from organs.registry.gguf.mixes import MIXES
from organs.registry.names import ModelName, parse_model_name
from organs.registry.search.fitting import fitting_models
from organs.registry.search.gains import DonorGain, gains_of_donors
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from organs.registry.transform.blend import METHODS
from organs.web.api.plans import UnderWay, compose_for_client
from organs.web.charts.network import Network, Shape, network
from organs.web.error_pages import sentence_of
from organs.web.pages.anatomy import BASELINE, can_be_drawn, letters
from organs.web.pages.chimera_names import proposed_name
from organs.web.pages.jobs import active_validations
from organs.web.pages.routes import UNKNOWN_MODEL, Context, WebPage
from organs.web.pages.steps import (
    SHARE_MAX,
    SHARE_MIN,
    RequestedSteps,
    adapter_of,
    compose_address,
    recipe_address,
)
from organs.web.permissions import planner
from organs.web.render import donor_class
from organs.web.responses import reading, searching, settings

FILE_NAME = "recipe.yaml"
TOO_SLOW = "Not shown: the search took too long."
NOTHING_YET = "nothing-to-do"
"""Code of the finding about a base without steps. It is not shown before the first step."""
FOUND_MAX = 12
"""Models of a search among the donors."""
CARDS_SHOWN = 6
"""Donors that are shown before the rest is opened."""
MEASURED_READ, MEASURED_SHOWN = 20, 5
PITCH, PITCH_BLOCKS = 24.0, 48
"""The height of a block that a finger can hit, for models with at most so many blocks."""
CELLS_MAX = 800
"""Cells of the drawing; a hostile file can have as many as tensors."""
PURIFIED = "✱"


def planned_steps(requested: RequestedSteps) -> tuple[UnderWay, int]:
    """Return the plan of the steps with the next choices, and the status of the answer.

    A step that cannot be read becomes a finding, and the status is 400. Raises the errors of `compose_for_client`.
    """
    step_errors: list[Finding] = []
    try:
        recipe = requested.recipe()
    except BadRecipe as error:
        recipe, step_errors = requested.readable(), recipe_findings(error)
    under_way = compose_for_client(recipe, step_errors, requested.cell, requested.order)
    return under_way, 400 if step_errors else 200


def workbench(requested: RequestedSteps, under_way: UnderWay, status: int, problem: str | None = None) -> WebPage:
    """Return the page of the steps."""
    plan, state = under_way.plan, under_way.state
    with searching() as session:
        bench = Bench(session, requested, under_way)
        cards = Cards(session, bench)
        donors = cards.context()
        proposed = plan_name(session, state)
    findings = [
        finding for finding in state.findings if finding.code != NOTHING_YET or len(requested.steps) > 1 or problem
    ]
    name_problem = next((finding.sentence for finding in findings if finding.field == "name"), "")
    if state.plan is None:  # the form for another name has the sentence
        findings = [finding for finding in findings if finding.field != "name"]
    shown = [asdict(finding) | {"accept": _accept_address(requested, finding)} for finding in findings]
    kept = [*requested.steps, *([("cell", requested.cell)] if requested.cell else [])]
    context = {
        "problem": problem or bench.problem or cards.problem,
        "steps": _steps(requested, state, bench.marks),
        "stage": bench.stage(),
        "marks": bench.marks,
        "acts": {} if state.plan is None else {parent.model: parent.acts for parent in state.plan.parents},
        "findings_shown": [finding for finding in shown if not _is_note(finding)],
        "notes": [finding for finding in shown if _is_note(finding)],
        "refused": sum(finding.severity is Severity.REFUSE for finding in findings),
        "has_steps": any(part.acts for part in plan.parts) or len(requested.steps) > 1,
        **donors,
        "base_title": bench.base.title,
        "base_short": short_name(plan.base.label),
        "hidden": [*requested.steps, *requested.selection()],
        "hidden_in_find": [*requested.steps, *requested.selection(find="")],
        "hidden_in_share": [*requested.steps, *requested.selection(share="")],
        "find": requested.find,
        "share_limits": (SHARE_MIN, SHARE_MAX),
        "name_problem": name_problem,
        "form_fields": [step for step in requested.steps if step[0] != "name"],
        "name": next((text for parameter, text in requested.steps if parameter == "name"), ""),
        "proposed_name": proposed,
        "types_to_choose": GRAFTED_TYPES,
        "methods": [method.value for method in PurifyMethod],
        "blend_methods": [name for name, method in METHODS.items() if method.needs_base and name != BLEND_DEFAULT],
        "purification_cost": KNOWN[ChangeKind.PURIFIED].sentence,
        "encodings": ENCODINGS,
        "mixes": list(MIXES),
        "encode": under_way.recipe.encode,
        "source": under_way.recipe.source,
        "sources": (PROVED, GIVEN),
        "other_base": compose_address([step for step in requested.steps if step[0] != "base"]),
        "swapped": compose_address([("base", requested.donor), ("donor", plan.base.label)]) if requested.donor else "",
        "fits": compose_address([("base", plan.base.label)], "pages.compose_fits"),
        "recipe_lines": {
            "recipe_file": FILE_NAME,
            "command": f"organ compose {FILE_NAME} -o {plan.file_name}",
            "python": recipe_python(under_way.recipe, plan.file_name),
        },
        "twin": compose_address(kept, "pages.compose_json"),
        "too_slow": TOO_SLOW,
        "measured": _measured_offers(plan.base.label),
        "same": _same_chimera(state),
        "cards_shown": CARDS_SHOWN,
        "leaderboard": url_for("pages.leaderboard", base=plan.base.label),
    }
    return WebPage("compose.html", asdict(state) | context, status=status)


def plan_name(session: Session, state: CompositionState) -> str | None:
    """Return the name that the form proposes for a chimera, or None for that of its plan."""
    if state.plan is None:
        return None
    base, *others = state.plan.parents
    donors = [parent.model for parent in others if not parent.is_source]
    return proposed_name(session, planner(), base.model, donors)


def _is_note(finding: Mapping[str, object]) -> bool:
    """Return whether a finding is folded: a remark that is not about a measurement."""
    return finding["severity"] is Severity.INFO and finding["code"] not in PLAN_CODES


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A tensor of the base, or of the blocks that a recipe arranged, as it is drawn."""

    cell: Cell
    slot: str
    shape: tuple[int, ...]

    @property
    def type(self) -> str:
        return self.cell.type

    @property
    def tower(self) -> str:
        return self.cell.tower

    @property
    def block(self) -> int | None:
        return self.cell.block


@dataclass(frozen=True, slots=True)
class Target:
    """What a click in the network does: a cell, a type, or a block."""

    label: str
    """For a screen reader, and for the pointer."""
    address: str | None
    """None if the selected donor has nothing to give here."""
    is_assigned: bool = False
    """Whether all of it comes from the selected donor, so that a click gives it back to the base."""


class Bench:
    """The base with what is assigned so far, and what a click does. The cells of the drawing are those of the plan."""

    def __init__(self, session: Session, requested: RequestedSteps, under_way: UnderWay) -> None:
        self.requested = requested
        self.plan = under_way.plan
        self.state = under_way.state
        self.recipe: Recipe | None = None if under_way.state.recipe is None else under_way.recipe
        """None if a step is invalid: a click would drop it."""
        self.layout = {
            cell_of(totals): totals.slots for totals in under_way.state.cells if totals.type in GRAFTED_TYPES
        }
        self.base = model_by_name(session, parse_model_name(self.plan.base.label))
        self.donor: ModelRow | None = None
        """The selected donor."""
        self.donor_change = NO_VALUE
        self.fits: Mapping[str, FitCount] = {}
        """How much of the selected donor fits, by type."""
        self.problem: str | None = None
        if requested.donor:
            self._select_donor(session)

    def _select_donor(self, session: Session) -> None:
        try:
            self.donor = model_by_text(session, self.requested.donor)
        except UNKNOWN_MODEL as error:
            self.problem = sentence_of(error)
            return
        fitting = self.state.fitting
        listed = [item for item in fitting.items if item.model == self.donor.full_name] if fitting else []
        for item in listed or list(fitting_models(session, self.base, 1, {self.donor.id}).items):
            self.donor_change, self.fits = weight_change_text(item.change, item.likeness), item.types

    @cached_property
    def marks(self) -> dict[str, str]:
        """The letters of the donors by their names, in the order of their colours."""
        parents = self.state.plan.parents if self.state.plan else ()
        sources = {parent.model for parent in parents if parent.is_source}
        return letters([parent.label for parent in self.plan.parents if parent.label not in sources])

    @cached_property
    def assignment(self) -> Assignment:
        """What the steps assign; only for a valid recipe."""
        assert self.recipe is not None
        return Assignment(self.recipe, self.layout)

    @property
    def givers(self) -> Mapping[Cell, Giver]:
        """The givers of the cells that a step assigns as a whole."""
        return {} if self.recipe is None else self.assignment.givers

    @cached_property
    def giver(self) -> Giver | None:
        """The selected donor with its weight: the one that was chosen, or that of its parts so far."""
        if self.donor is None:
            return None
        name = self.donor.full_name
        if self.requested.share is not None:
            return Giver(name, self.requested.share)
        used = Counter(giver.weight for giver in self.givers.values() if is_same_name(giver.donor, name))
        return Giver(name, used.most_common(1)[0][0] if used else TAKEN)

    @property
    def has_towers(self) -> bool:
        """Whether the base has several towers. Blends select in all of them, so its parts are only taken."""
        return len({cell.tower for cell in self.layout}) > 1

    def target(self, cells: Collection[Cell], what: str) -> Target:
        """Return what a click on `cells` does with the selected donor, which must be there."""
        giver, recipe = self.giver, self.recipe
        assert giver is not None
        short = short_name(giver.donor)
        if recipe is None:
            return Target(f"{what}: remove the invalid step first", None)
        possible = [cell for cell in cells if self._can_give(cell)]
        own = [cell for cell in cells if (other := self.givers.get(cell)) is not None and giver.is_same(other)]
        if own and len(own) >= len(possible):
            return Target(f"{what}: from {short}; click to give it back to the base", self.moved(own, None), True)
        if not possible:
            counts = [self.fits.get(cell.type) for cell in cells]
            is_equal = any(count is not None and count.equal == count.total for count in counts)
            return Target(f"{what}: {'identical in' if is_equal else 'nothing fits from'} {short}", None)
        weight = "" if giver.weight == TAKEN else f", weight {giver.weight:g}"
        return Target(f"{what}: click to give it from {short}{weight}", self.moved(possible, giver))

    def moved(self, cells: Collection[Cell], giver: Giver | None, **selection: str) -> str:
        """Return the address of the page with `cells` from `giver`, or from the base; `selection` replaces parts of
        what is selected."""
        changed = self.assignment.having(cells, giver)
        return self.requested.of_recipe(changed).address(anchor="anatomy", **selection)

    def with_parts(self, kinds: Collection[str], blocks: Sequence[BlockRange]) -> str:
        """Return the address of the page with these parts from the selected donor. Empty selects all.

        Raises BadQuery without a donor.
        """
        cells = [
            cell
            for cell in self.layout
            if self._can_give(cell)
            and (not kinds or cell.type in kinds)
            and (not blocks or (cell.block is not None and within(cell.block, blocks)))
        ]
        if self.giver is None or self.recipe is None:
            raise BadQuery("donor", "a model that gives these parts, and steps that are valid")
        return self.moved(cells, self.giver)

    def weighted(self) -> str:
        """Return the address of the page with all parts of the selected donor at its chosen weight."""
        if self.giver is None or self.recipe is None:
            raise BadQuery("donor", "a model that gives parts, and steps that are valid")
        cells = [cell for cell, own in self.givers.items() if is_same_name(own.donor, self.giver.donor)]
        return self.moved(cells, self.giver, **({"share": ""} if cells else {}))

    def _can_give(self, cell: Cell) -> bool:
        count = self.fits.get(cell.type)
        return count is not None and count.fitting > 0

    def types(self) -> Iterator[tuple[str, list[Cell]]]:
        """Yield the types of the base that can be grafted, with their cells."""
        for kind in GRAFTED_TYPES:
            if cells := [cell for cell in self.layout if cell.type == kind]:
                yield kind, cells

    def stage(self) -> Context:
        """Return the drawing with what a click on each part does."""
        totals = {cell_of(one): one for one in self.state.cells}
        parts = [DrawnPart(Cell.of(part.before), part.before.place.slot, part.before.shape) for part in self.plan.parts]
        rows = sorted({(cell.tower, cell.block) for cell in totals if cell.block is not None})
        drawing: Network[DrawnPart] | None = None
        if can_be_drawn(parts) and len(totals) <= CELLS_MAX:
            drawing = network(parts, PITCH if len(rows) <= PITCH_BLOCKS else None, named=False)
        shapes: dict[Cell, list[Shape[DrawnPart]]] = {}
        for shape in drawing.shapes if drawing else ():
            shapes.setdefault(shape.organ.cell, []).append(shape)
        kinds = []
        if self.giver is not None:
            for kind, cells in self.types():
                kinds.append({"type": kind, "target": self.target(cells, f"all {type_name(kind)}")})
        return {
            "drawing": drawing,
            "cells": [self._cell(totals[cell], own) for cell, own in shapes.items()],
            "others": [self._cell(one, ()) for cell, one in totals.items() if cell not in shapes][:CELLS_MAX],
            "blocks": [] if drawing is None else self._blocks(rows, drawing),
            "blocks_count": len(rows),
            "types": kinds,
            "giver": self.giver,
            "short": None if self.giver is None else short_name(self.giver.donor),
            "has_weight": not self.has_towers,
            "tone": self._tone_of_giver(),
            "is_computed": any(one.to_compute for one in totals.values()),
            "is_purified": any(one.purified for one in totals.values()),
        }

    def _tone_of_giver(self) -> str:
        names = list(self.marks)
        own = [name for name in names if self.giver is not None and is_same_name(name, self.giver.donor)]
        return donor_class(names.index(own[0])) if own else donor_class(len(names))

    def _blocks(self, rows: Sequence[tuple[str, int | None]], drawing: Network[DrawnPart]) -> list[Context]:
        """Return the number of each block on the residual stream, and what a click on it does."""
        x, _, width, _ = drawing.spine
        blocks = []
        for (tower, block), (_, _, y) in zip(rows, drawing.ribs, strict=True):
            target = None
            if self.giver is not None:
                own = [cell for cell in self.layout if (cell.tower, cell.block) == (tower, block)]
                target = self.target(own, f"{'' if tower == 'text' else f'{tower} '}block {block}, all types")
            blocks.append(
                {"number": block, "x": x, "width": width, "y": y - drawing.pitch / 2, "middle": y, "target": target}
            )
        return blocks

    def _cell(self, totals: CellTotals, shapes: Sequence[Shape[DrawnPart]]) -> Context:
        donors = [name for name in totals.models if name in self.marks]
        signs = [*(self.marks[name] for name in donors), *([PURIFIED] if totals.purified else [])]
        where = "outside the blocks" if totals.block is None else f"block {totals.block}"
        what = f"{'' if totals.tower == 'text' else f'{totals.tower} '}{where}, {type_name(totals.type)}"
        cell = cell_of(totals)
        if cell not in self.layout:
            target = Target(f"{what}: cannot be replaced", None)
        elif self.giver is not None:
            target = self.target([cell], what)
        else:
            source = f"from {' and '.join(map(short_name, totals.models))}" if totals.models else "from the base"
            done = ", purified" if totals.purified else ""
            target = Target(f"{what}: {source}{done}; click for its donors", self._select(cell))
        widest = max(shapes, key=lambda shape: shape.width, default=None)
        return {
            "key": totals.cell,
            "type": totals.type,
            "block": totals.block,
            "tone": donor_class(list(self.marks).index(donors[0])) if donors else "gb",
            "sign": "".join(signs),
            "target": target,
            "chosen": totals.cell == self.requested.cell,
            "paths": [(shape.path, shape.look) for shape in shapes],
            "x": 0 if widest is None else round(widest.x + widest.width / 2, 1),
            "y": 0 if widest is None else round(widest.y + widest.height / 2 + BASELINE, 1),
        }

    def _select(self, cell: Cell) -> str:
        return self.requested.address(cell=str(cell), anchor="donors")


def cell_of(totals: CellTotals) -> Cell:
    """Return the cell of `totals`."""
    return Cell(totals.type, totals.block, totals.tower)


def short_name(name: str) -> str:
    """Return the name of a model without its namespace, and without the version 1."""
    return name.partition("/")[2].removesuffix("@1") or name


@dataclass(frozen=True, slots=True)
class DonorCard:
    """A model that can give parts to the base, as a person chooses it."""

    name: str
    title: str | None
    relation: str
    change: str
    gain: DonorGain | None
    license: str | None
    size_bytes: int
    address: str
    """Selects it; of the selected one, to no donor; in the list for a cell, gives the cell."""
    is_chosen: bool
    gives: str | None = None
    """Words for `address` if it gives a cell."""

    @property
    def short(self) -> str:
        """Its name without the namespace."""
        return short_name(self.name)

    @property
    def namespace(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """A LoRA that can be merged into the base."""

    name: str
    title: str | None
    license: str | None
    size_bytes: int
    gain: DonorGain | None
    findings: Sequence[Finding]
    scale: float | None
    """Its scale in the recipe; None if it is not in it."""
    remove: str | None

    @property
    def short(self) -> str:
        """Its name without the namespace."""
        return short_name(self.name)


class Cards:
    """The models among which a person chooses: relatives, the found ones, or those with parts for the selected cell."""

    def __init__(self, session: Session, bench: Bench) -> None:
        self.session = session
        self.bench = bench
        self.requested = bench.requested
        self.base = bench.base
        self.problem: str | None = None

    def context(self) -> Context:
        """Return the cards of donors and adapters, and what is listed."""
        state, requested = self.bench.state, self.requested
        is_for_cell = bool(requested.cell) and self.bench.donor is None
        names: dict[str, tuple[str, str | None]] = {}
        """The change of each model and, in the list for a cell, the address that gives it."""
        adapters = list(state.adapters)
        misfits, is_slow = 0, False
        if is_for_cell:
            is_slow = state.candidates is None
            for candidate in state.candidates.items if state.candidates else ():
                give = None
                if candidate.whole and self.bench.recipe is not None and state.candidates:
                    cell = Cell(state.candidates.type, state.candidates.block, state.candidates.tower)
                    give = self.bench.moved([cell], Giver(candidate.model))
                names[candidate.model] = weight_change_text(candidate.change, candidate.likeness), give
        elif requested.find:
            found = self._found()
            fitting = fitting_models(self.session, self.base, FOUND_MAX, {row.id for row in found})
            names = {item.model: (weight_change_text(item.change, item.likeness), None) for item in fitting.items}
            adapters = [item for item in adapters if item.model in {row.full_name for row in found}]
            misfits = len(found) - len(names) - len(adapters) - sum(row.id == self.base.id for row in found)
        else:
            is_slow = state.fitting is None
            for item in state.fitting.items if state.fitting else ():
                names[item.model] = NO_VALUE if item.same else weight_change_text(item.change, item.likeness), None
        if (donor := self.bench.donor) is not None and donor.full_name not in names:
            names = {donor.full_name: (self.bench.donor_change, None)} | names
        elif donor is not None and list(names).index(donor.full_name) >= CARDS_SHOWN:
            names = {donor.full_name: names[donor.full_name]} | names
        rows = {name: model_by_name(self.session, parse_model_name(name)) for name in names}
        adapter_rows = {item.model: model_by_name(self.session, parse_model_name(item.model)) for item in adapters}
        ids = [row.id for row in (*rows.values(), *adapter_rows.values())]
        gains = gains_of_donors(self.session, self.base.id, ids) if ids else {}
        scales = {adapter_of(text): text for parameter, text in requested.steps if parameter == "adapter"}
        return {
            "cards": self._donor_cards(names, rows, gains, is_for_cell=is_for_cell),
            "adapters": [
                self._adapter_card(adapter_rows[item.model], item.findings, gains, scales) for item in adapters
            ],
            "misfits": max(0, misfits),
            "is_slow": is_slow,
            "chosen_cell": self._chosen_cell() if is_for_cell else None,
            "orders": [
                {
                    "label": label,
                    "chosen": order == requested.order,
                    "address": requested.address(order=order, anchor="donors"),
                }
                for order, label in CANDIDATE_ORDERS.items()
            ],
            "all_donors": requested.address(cell="", find="", donor="", share="", anchor="donors"),
            "more_query": state.candidates.query
            if is_for_cell and state.candidates and state.candidates.more
            else None,
        }

    def _found(self) -> list[ModelRow]:
        try:
            page = search_models(self.session, parse_query(self.requested.find, MODELS), FOUND_MAX)
        except BadQuery as error:
            self.problem = str(error)
            return []
        return [model_by_name(self.session, parse_model_name(item.name)) for item in page.items]

    def _donor_cards(
        self,
        names: Mapping[str, tuple[str, str | None]],
        rows: Mapping[str, ModelRow],
        gains: Mapping[int, DonorGain],
        *,
        is_for_cell: bool,
    ) -> list[DonorCard]:
        composed = composed_among(self.session, [row.id for row in rows.values()])
        stem = ModelName(self.base.namespace, self.base.stem)
        sizes = {row.id for row in quantisations_of(self.session, stem)}
        fitting = self.bench.state.fitting
        same = {item.model for item in fitting.items if item.same} if fitting else set()
        cards = []
        for name, (change, give) in names.items():
            row = rows[name]
            is_chosen = self.bench.donor is not None and row.id == self.bench.donor.id
            relation = (
                "the same model"
                if name in same
                else "chimera"
                if row.id in composed
                else "another size"
                if row.id in sizes
                else "unrelated"
                if change == NO_VALUE
                else "relative"
            )
            if is_for_cell:
                address = give or ""
            elif is_chosen:
                address = self.requested.address(donor="", share="", anchor="donors")
            else:
                address = self.requested.address(donor=name, share="", cell="", anchor="anatomy")
            cards.append(
                DonorCard(
                    name=name,
                    title=row.title,
                    relation=relation,
                    change=change,
                    gain=gains.get(row.id),
                    license=row.license,
                    size_bytes=row.size_bytes,
                    address=address,
                    is_chosen=is_chosen,
                    gives="Give this part" if give else "not complete" if is_for_cell else None,
                )
            )
        return cards

    def _adapter_card(
        self, row: ModelRow, findings: Iterable[Finding], gains: Mapping[int, DonorGain], used: Mapping[str, str]
    ) -> AdapterCard:
        text = next((text for name, text in used.items() if is_same_name(name, row.full_name)), None)
        scale = remove = None
        if text is not None:
            scale = read_steps([("base", "any"), ("adapter", text)]).adapters[0].scale
            remove = self.requested.without(self.requested.steps.index(("adapter", text))).address(anchor="donors")
        return AdapterCard(
            name=row.full_name,
            title=row.title,
            license=row.license,
            size_bytes=row.size_bytes,
            gain=gains.get(row.id),
            findings=tuple(findings),
            scale=scale,
            remove=remove,
        )

    def _chosen_cell(self) -> str:
        """Return words for the selected cell."""
        candidates = self.bench.state.candidates
        if candidates is None:
            return self.requested.cell
        where = "outside the blocks" if candidates.block is None else f"block {candidates.block}"
        return f"{type_name(candidates.type)}, {where}"


def _steps(requested: RequestedSteps, state: CompositionState, marks: Mapping[str, str]) -> list[Context]:
    """Return the steps in words, each with its faults and the address that removes it."""
    refusals = [finding for finding in state.findings if finding.severity is Severity.REFUSE and finding.field]
    steps = []
    for place, ((parameter, text), path) in enumerate(zip(requested.steps, step_paths(requested.steps), strict=True)):
        if parameter in ("base", "name"):
            continue
        words, donor = step_words(parameter, text)
        mark = next((mark for name, mark in marks.items() if donor and is_same_name(donor, name)), "")
        steps.append(
            {
                "parameter": parameter,
                "text": text,
                "words": words,
                "mark": mark,
                "tone": donor_class(list(marks.values()).index(mark)) if mark else "",
                "path": path,
                "remove": requested.without(place).address(),
                "problems": [
                    finding.sentence
                    for finding in refusals
                    if finding.field == path or finding.field.startswith((f"{path}.", f"{path}["))
                ],
            }
        )
    return steps


def step_words(parameter: str, text: str) -> tuple[str, str | None]:
    """Return a step in words, and its donor; for a step without words of its own, its text."""
    try:
        recipe = read_steps([("base", "any"), (parameter, text)])
    except BadRecipe:
        return f"{parameter} {text}", None
    if recipe.grafts and (donor := recipe.grafts[0].donor):
        return f"{_selected(recipe.grafts[0])} from {short_name(donor)}", donor
    if recipe.blends and (donor := recipe.blends[0].donor):
        blend = recipe.blends[0]
        weight = blend.parameters.get("weight", blend.parameters.get("t"))
        return f"{_selected(blend)} blended with {short_name(donor)}{_share_text(weight) or f' {blend.method}'}", donor
    if recipe.blends and recipe.blends[0].models:
        blend = recipe.blends[0]
        shares = (f"{short_name(one.model)}{_share_text(one.parameters.get('weight'))}" for one in blend.models)
        return f"{_selected(blend)} blended ({blend.method}): {', '.join(shares)}", None
    if recipe.adapters:
        adapter = recipe.adapters[0]
        return f"LoRA {short_name(adapter.adapter)} × {adapter.scale:g}", adapter.adapter
    if parameter == "accept":
        return f"accepted: {text}", None
    return f"{parameter} {text}", None


def _share_text(weight: Setting | None) -> str:
    """Return the weight of a model in words: the smallest and the largest if it has several."""
    settings = weight if isinstance(weight, tuple) else (() if weight is None else (weight,))
    values = [one.value if isinstance(one, SettingRule) else one for one in settings]
    numbers = [number for value in values for number in (value if isinstance(value, tuple) else (value,))]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    return f" × {low:g}" if low == high else f" × {low:g} to {high:g}"


def _selected(step: Selection) -> str:
    """Return what a step selects: `attention, norm, blocks 2-5`."""
    kinds = [type_name(kind) for kind in step.types] or list(step.slots) or ["everything"]
    ranges = ", ".join(map(range_text, step.blocks))
    blocks = f", {'block' if ranges.isdecimal() else 'blocks'} {ranges}" if ranges else ""
    experts = f", experts {', '.join(map(range_text, step.experts))}" if step.experts else ""
    return f"{', '.join(kinds)}{blocks}{experts}"


def _same_chimera(state: CompositionState) -> Context | None:
    """Return the registered chimera with the same lock as the plan, with what was measured or is being measured."""
    lock = None if state.plan is None else state.plan.lock_id
    if lock is None:
        return None
    with searching() as session:
        try:
            model = chimeras_by_lock(session, lock)[0]
        except NotFound:
            return None
        verdict = strongest_verdicts(session, [model.id]).get(model.id)
        look = stored_quick_look(session, model.id)
        jobs = active_validations(session, model.full_name)
    sentence = "It was not run yet."
    if verdict is not None:
        sentence = f"It was run on {verdict.created_at:%Y-%m-%d}: {verdict.verdict}. {verdict.reason}"
    elif look is not None:
        sentence = look.sentence
    return {"model": model.full_name, "sentence": sentence, "look": look, "jobs": jobs}


def _measured_offers(base: str) -> list[Context]:
    """Return the grafts with the largest measured gains over `base`, each with the address of its recipe."""
    try:
        with reading(settings().counts_seconds) as session:
            page = leaderboard(session, model_by_text(session, base), None, MEASURED_READ)
    except TooSlow:
        g.not_cached = True  # the next request may be fast enough
        return []
    offered = [graft for graft in page if graft.best.percent > 0.0 and not graft.unavailable_parents]
    return [{"graft": graft, "address": recipe_address(graft.recipe)} for graft in offered[:MEASURED_SHOWN]]


def _accept_address(requested: RequestedSteps, finding: Finding) -> str | None:
    """Return the address that accepts a warning, or undoes the acceptance; None for other findings."""
    if finding.severity is not Severity.WARN:
        return None
    step = ("accept", finding.code)
    if step in requested.steps:
        return requested.without(requested.steps.index(step)).address(anchor="findings")
    return requested.having(*step).address(anchor="findings")
