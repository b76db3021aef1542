"""Tests of `registry.quantizing.search` on a trained model in llama.cpp: limits, interruptions, and what is stored."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from organs.ingest.fleet.plan import FleetPlan, PlannedWork, expand_plan
from organs.ingest.fleet.worker import WORK
from organs.registry.catalog.tables import SensitivityRow
from organs.registry.compose.parents import Part, RegisteredLibrary
from organs.registry.compose.recipe import recipe_of_values
from organs.registry.entities.sizes import QuantizationRequest, SizedModel
from organs.registry.errors import BadInput, DiskFull, NotComposable, NotFound, TooLittleTime
from organs.registry.gguf.types import DType, dtype_by_name
from organs.registry.local import LocalRegistry
from organs.registry.quantizing import search
from organs.registry.quantizing.additive import options_of
from organs.registry.quantizing.groups import OrganGroup, allowed_dtypes, coarse_dtype, first_groups, halves
from organs.registry.quantizing.layouts import Layouts, rules_of
from organs.registry.quantizing.search import bands_of, quantize
from organs.registry.quantizing.shards import ShardedModel
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.variants import VariantLine
from tests.registry_templates import RegistryTemplates, add_zoo_models

MODEL = "Zoo-A-2M-v1.0-F16"
MINUTES = 0.15


@pytest.fixture(scope="module")
def zoo(templates: RegistryTemplates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with templates.open_copy(add_zoo_models, tmp_path_factory.mktemp("zoo") / "home") as opened:
        yield opened


@pytest.fixture(scope="module")
def layouts(zoo: LocalRegistry) -> Layouts:
    with zoo.catalog.reading() as session:
        return Layouts(RegisteredLibrary(session, zoo.blobs).parent(MODEL))


def stored(zoo: LocalRegistry) -> int:
    with zoo.catalog.reading() as session:
        return session.scalar(select(func.count()).select_from(SensitivityRow)) or 0


class Stopped(Exception):
    """An interruption by a test."""


def interrupting(after: int):  # type: ignore[no-untyped-def]
    """Return a callback that interrupts a search when so many groups were measured in this run."""
    steps = set[str]()

    def progress(_share: float, step: str) -> None:
        if step.startswith("measuring group"):
            steps.add(step)
        if len(steps) > after:
            raise Stopped

    return progress


@pytest.fixture(scope="module")
def sized(zoo: LocalRegistry) -> tuple[SizedModel, int]:
    """A size that was searched for with two interruptions, and how many variants of groups the runtime compared."""
    request, compared = QuantizationRequest(model=MODEL, like="Q4_K_M", minutes=MINUTES), 0
    compare = LlamaCpp.compare_variants

    def counting(self: LlamaCpp, order, folder, seconds, take):  # type: ignore[no-untyped-def]
        def counted(line: VariantLine) -> None:
            nonlocal compared
            compared += line.variant is not None and not order.details
            take(line)

        compare(self, order, folder, seconds, counted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LlamaCpp, "compare_variants", counting)
        patch.setattr(search, "CORRECTIONS", 1)
        for after in (2, 3):
            before = stored(zoo)
            with pytest.raises(Stopped):
                quantize(zoo.catalog, zoo.blobs, request, LlamaCpp(), interrupting(after))
            assert stored(zoo) > before
        made = quantize(zoo.catalog, zoo.blobs, request, LlamaCpp())
    return made, compared


@pytest.mark.long
def test_a_chosen_size_is_closer_to_its_source_than_the_plain_mix_of_the_same_size(
    zoo: LocalRegistry, sized: tuple[SizedModel, int]
) -> None:
    made, _ = sized
    assert made.plain is not None
    assert made.plain.label == "Q4_K_M"
    assert made.point.size_bytes == zoo.model(made.chimera.model).size_bytes <= made.plain.size_bytes
    assert made.point.divergence is not None
    assert made.plain.divergence is not None
    assert made.point.divergence < 0.8 * made.plain.divergence
    assert made.point.divergence_99 is not None
    assert 0 < made.point.divergence < made.point.divergence_99
    curve = zoo.sizes(MODEL)
    assert {point.tag for point in curve.points} >= {"Q4_K_M", "Q4_K_M-best"}


@pytest.mark.long
def test_an_interrupted_search_measures_nothing_twice(zoo: LocalRegistry, sized: tuple[SizedModel, int]) -> None:
    _, compared = sized
    choices = 4  # the files that are compared at the end, which are not stored as sensitivities
    assert compared == stored(zoo) + choices


@pytest.mark.long
def test_the_made_file_has_the_chosen_types(
    zoo: LocalRegistry, sized: tuple[SizedModel, int], layouts: Layouts
) -> None:
    made, _ = sized
    organs = {organ.name: organ.dtype for organ in zoo.organs_of(made.chimera.model)}
    assert len(set(organs.values())) > 2, "several types"
    chimera = zoo.chimera(made.chimera.lock_id)
    assert chimera.recipe.quantize
    for part in layouts.parts:
        assert organs[part.name] in {dtype.name for dtype in allowed_dtypes(part)}


@pytest.mark.slow
def test_a_file_fits_into_a_memory_by_the_count_of_the_runtime(zoo: LocalRegistry) -> None:
    wanted = 6_000_000
    request = QuantizationRequest(model=MODEL, memory_bytes=wanted, context=256, minutes=MINUTES)
    made = quantize(zoo.catalog, zoo.blobs, request, LlamaCpp())
    assert made.memory is not None
    assert 0.95 * wanted < made.memory.total_bytes <= wanted


def test_a_size_below_the_smallest_file_is_refused_with_the_reason(zoo: LocalRegistry) -> None:
    for request, reason in (
        (QuantizationRequest(model=MODEL, bits=3.0), "rows of 25 matrices have 192 values"),
        (QuantizationRequest(model=MODEL, size_bytes=500_000), "the smallest file"),
        (QuantizationRequest(model=MODEL, like="Q9_X"), "not a mix of llama.cpp"),
        (QuantizationRequest(model=MODEL, like=f"local/{MODEL}"), "no other file is needed"),
    ):
        with pytest.raises(BadInput, match=reason):
            quantize(zoo.catalog, zoo.blobs, request, LlamaCpp())


def test_a_second_rounding_is_refused_with_the_reason(zoo: LocalRegistry) -> None:
    request = QuantizationRequest(model="Zoo-B-2M-v1.0-Q8_0", bits=6.5)
    reason = "Q8_0 already, would be rounded a second time.*To make it all the same, accept rounded-twice"
    with pytest.raises(NotComposable, match=reason):
        quantize(zoo.catalog, zoo.blobs, request, LlamaCpp())


def test_too_little_time_is_refused_before_anything_is_measured(
    zoo: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "operations_per_second", lambda: 1e6)
    request = QuantizationRequest(model="Zoo-B-2M-v1.0-Q8_0", bits=6.5, minutes=1, accept=("rounded-twice",))
    with pytest.raises(TooLittleTime, match="on this machine, more than the 1 minutes that are allowed: allow "):
        quantize(zoo.catalog, zoo.blobs, request, LlamaCpp())


def test_the_rules_of_a_recipe_give_each_organ_its_type(zoo: LocalRegistry, layouts: Layouts) -> None:
    cycles = {part.name: itertools.cycle(allowed_dtypes(part)) for part in layouts.parts}
    for turn in range(4):
        dtypes = {
            part.name: next(itertools.islice(cycles[part.name], (part.place.block or 0) + turn, None))
            for part in layouts.parts
        }
        values = {"base": MODEL, "quantize": rules_of(layouts.parts, dtypes)}
        plan = zoo.compose(recipe_of_values(values, "recipe")).plan()
        assert {part.name: part.dtype for part in plan.parts if part.name in dtypes} == {
            name: dtype.name for name, dtype in dtypes.items()
        }


def test_groups_are_bands_of_blocks_and_are_halved_to_single_organs(layouts: Layouts) -> None:
    groups, halved, fewest = first_groups(layouts.parts)
    assert sorted(part.name for group in groups for part in group.parts) == sorted(part.name for part in layouts.parts)
    assert {half.key for group in halved for half in halves(group)} == {group.key for group in groups}
    assert {group.key for group in fewest} >= {"token_embd", "ffn_down 0-3"}
    down = next(group for group in fewest if group.key == "ffn_down 0-3")
    assert [half.key for half in halves(down)] == ["ffn_down 0-1", "ffn_down 2-3"]
    single = halves(halves(down)[0])[0]
    assert (single.key, [half.key for half in halves(single)]) == ("ffn_down 0", ["ffn_down 0"])
    coarse = coarse_dtype(down, 4.6)
    assert coarse is not None
    assert coarse.bits_per_value <= 4.6


def test_no_group_is_measured_in_a_type_that_it_has(layouts: Layouts) -> None:
    def stored_in(*names: str) -> OrganGroup:
        own = [part for part in layouts.parts if part.place.slot == "attn_q"]
        return OrganGroup(
            "attn_q", tuple(replace(part, dtype=dtype_by_name(name)) for part, name in zip(own, names, strict=False))
        )

    for names, expected in (
        (("Q8_0", "Q8_0"), "IQ4_NL"),
        (("IQ4_NL", "Q8_0"), None),
        (("Q5_0", "Q4_1"), "IQ4_NL"),
        (("IQ4_NL",), None),
    ):
        dtype = coarse_dtype(stored_in(*names), 4.6)
        assert (dtype and dtype.name) == expected


def test_an_estimate_is_what_was_measured_shared_by_the_errors(layouts: Layouts) -> None:
    parts = tuple(part for part in layouts.parts if part.place.slot == "ffn_down")[:2]
    group = OrganGroup("ffn_down 0-1", parts)

    def weigh(part: Part, dtype: DType) -> float:
        return dtype.size_bytes(part.spec.elements)

    errors = {parts[0].name: {"IQ4_NL": 3.0, "Q8_0": 0.03}, parts[1].name: {"IQ4_NL": 1.0, "Q8_0": 0.01}}
    options = options_of([group], errors, {(group.key, "IQ4_NL"): 0.4}, weigh)
    found = {name: {option.dtype.name: option.divergence for option in own} for name, own in options.items()}
    assert found[parts[0].name] == pytest.approx({"IQ4_NL": 0.3, "Q8_0": 0.003, "F16": 0.0})
    assert found[parts[1].name]["Q8_0"] == pytest.approx(0.001)
    errors = {
        name: {"IQ4_NL": own["IQ4_NL"], "Q5_0": own["IQ4_NL"] / 4, "Q8_0": own["Q8_0"]} for name, own in errors.items()
    }
    for measured in ({"Q8_0": 0.02}, {"Q5_0": 0.3, "Q8_0": 0.02}):
        measured = {"IQ4_NL": 0.4, **measured}
        several = options_of([group], errors, {(group.key, name): value for name, value in measured.items()}, weigh)
        for name, value in measured.items():
            added = [option.divergence for own in several.values() for option in own if option.dtype.name == name]
            assert sum(added) == pytest.approx(value), "a measured type adds what was measured"
    same = {part.name: {"IQ4_NL": 0.5, "Q8_0": 0.5} for part in parts}
    measured = {(group.key, "IQ4_NL"): 0.4, (group.key, "Q8_0"): 0.2}
    assert {option.divergence for own in options_of([group], same, measured, weigh).values() for option in own} <= {
        *(0.0, 0.1, 0.2),
    }, "types with the same errors"


def test_a_group_without_a_measurement_is_as_sensitive_as_the_others(layouts: Layouts) -> None:
    parts = [part for part in layouts.parts if part.place.slot == "ffn_down"][:3]
    groups = [OrganGroup(f"ffn_down {number}", (part,)) for number, part in enumerate(parts)]
    errors = {part.name: {"IQ4_NL": 2.0} for part in parts}
    measured = {("ffn_down 0", "IQ4_NL"): 0.5, ("ffn_down 1", "IQ4_NL"): 0.3}
    options = options_of(groups, errors, measured, lambda part, dtype: dtype.size_bytes(part.spec.elements))
    assert [options[part.name][0].divergence for part in parts] == pytest.approx([0.5, 0.3, 0.4])


@pytest.mark.long
def test_a_full_disk_ends_a_search(zoo: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(ShardedModel, "write_variant", full)
    with pytest.raises(DiskFull):
        quantize(zoo.catalog, zoo.blobs, QuantizationRequest(model=MODEL, bits=6.5, minutes=MINUTES), LlamaCpp())


@pytest.mark.long
def test_a_fleet_measures_all_that_a_search_needs(zoo: LocalRegistry, tmp_path: Path) -> None:
    model = "local/Zoo-C-1M-v1.0-Q8_0@1"
    plan = FleetPlan("sizes", [PlannedWork("sensitivity", models=[model])])
    expanded = expand_plan(zoo, plan, tmp_path)
    bands = bands_of(zoo.catalog, zoo.blobs, model)
    assert [unit.source for unit in expanded.units] == [f"{model} {band}" for band in bands]
    band = next(unit.source for unit in expanded.units if "ffn_down" in unit.source)
    done, _ = WORK["sensitivity"](zoo, band, lambda: None, None)
    assert done["measured"] == 1, "a band of one tensor"
    again, _ = WORK["sensitivity"](zoo, band, lambda: None, None)
    assert again["measured"] == 0
    with pytest.raises(NotFound, match="no band 'ffn_up 7-9'"):
        WORK["sensitivity"](zoo, f"{model} ffn_up 7-9", lambda: None, None)
