"""Tests of compatibility: every kind of finding where it applies, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.anatomy import OrganType, group_of, place_of
from organs.registry.compose.adapters import check_adapter
from organs.registry.compose.compatibility import check_compatibility, check_replacements
from organs.registry.compose.parents import Parent
from organs.registry.compose.screen import part_correlation
from organs.registry.entities.finding import Finding, Severity
from organs.registry.gguf import KeyValue, ValueType
from organs.registry.gguf.types import foreign_dtype
from organs.registry.kinds import WEIGHT_KINDS
from tests.compose.parents import (
    CODE,
    LORA,
    A,
    B,
    C,
    HeaderValue,
    model_tensors,
    parent_from,
    replacements_from,
    synthetic_parent,
    zoo,
)
from tests.gguf_files import file_bytes, text
from tests.random_files import PATIENT, entries

ORGAN, SKELETON, EMBED, NORM = OrganType.ORGAN, OrganType.SKELETON, OrganType.EMBED, OrganType.NORM
KIN = model_tensors()
STRANGER = model_tensors(seed=1)
SMALL = model_tensors(blocks=1, width=32)


def codes(findings: Iterable[Finding], severity: Severity | None = None) -> set[str]:
    return {finding.code for finding in findings if severity is None or finding.severity is severity}


def warned(findings: Iterable[Finding]) -> set[str]:
    return codes(findings, Severity.WARN)


def refused(findings: Iterable[Finding]) -> set[str]:
    return codes(findings, Severity.REFUSE)


def only(findings: Iterable[Finding], code: str) -> Finding:
    (found,) = [finding for finding in findings if finding.code == code]
    return found


def of_types(base: Parent, donor: Parent, *types: OrganType) -> list[Finding]:
    return check_replacements(base, replacements_from(base, donor, *types))


# The zoo


def test_a_single_matrix_of_a_distant_relative_is_not_called_unrelated() -> None:
    base, branch = zoo(A), zoo("Zoo-A-2M-Branch-v1.0-Q8_0.gguf")
    replacements = [item for item in replacements_from(base, branch, SKELETON) if item.before.organ.is_matrix]
    likenesses = [part_correlation(item.before, item.after) or 0.0 for item in replacements]
    assert min(likenesses) < 0.35, "such a likeness of unrelated matrices would be chance"
    for replacement in replacements:
        assert warned(check_replacements(base, [replacement])) == set()


def test_norms_of_an_unrelated_model_are_recognised_by_comparing_whole_models() -> None:
    assert warned(of_types(zoo(A), zoo(B), NORM)) == {"unrelated-lineage"}
    assert warned(of_types(zoo(A), zoo(CODE), NORM)) == set()


def test_a_narrower_model_fits_nowhere_and_every_type_says_why() -> None:
    fits = {fit.type: fit for fit in check_compatibility(zoo(A), zoo(C)).types}
    assert {kind: (fit.fitting, fit.total) for kind, fit in fits.items()} == {
        SKELETON: (0, 16),
        ORGAN: (0, 12),
        EMBED: (0, 1),
        NORM: (0, 9),
    }
    assert refused(fits[SKELETON].findings) == {"width-differs", "heads-differ"}
    assert refused(fits[ORGAN].findings) == {"width-differs"}
    assert refused(fits[EMBED].findings) == {"width-differs", "tied-embeddings"}
    assert all(fit.refused for fit in fits.values())
    sentence = only(fits[ORGAN].findings, "width-differs").sentence
    assert "128 values in a row, in Zoo-A-2M-v1.0-F16 192" in sentence
    assert warned(check_compatibility(zoo(A), zoo(C)).findings) == {"other-scale"}


def test_the_relatives_of_a_base_fit_in_every_type() -> None:
    fits = check_compatibility(zoo(A), zoo(CODE)).types
    assert [(fit.type, fit.fitting) for fit in fits] == [(SKELETON, 16), (ORGAN, 12), (EMBED, 1), (NORM, 9)]
    assert not any(fit.refused for fit in fits)
    assert codes(check_compatibility(zoo(A), zoo(CODE)).findings) == {"related-lineage"}


def test_an_adapter_of_the_zoo_fits_its_base_and_fine_tune_and_differs_from_that_of_an_unrelated_model() -> None:
    assert codes(check_adapter(zoo(A), zoo(LORA))) == codes(check_adapter(zoo(CODE), zoo(LORA))) == {"adapter-rank"}
    assert "rank 8, with an alpha of 16" in only(check_adapter(zoo(A), zoo(LORA)), "adapter-rank").sentence
    assert codes(check_adapter(zoo(B), zoo(LORA))) == {"adapter-rank", "adapter-base-differs"}
    assert refused(check_adapter(zoo(C), zoo(LORA))) == {"adapter-misfit"}
    assert list(check_compatibility(zoo(A), zoo(LORA)).findings) == check_adapter(zoo(A), zoo(LORA))


# Headers


SKELETON_ONLY = {"skeleton"}
EVERY_TYPE = {"skeleton", "organ", "embed", "norm"}
DIFFERENCES: list[tuple[str, Severity, set[str], dict[str, HeaderValue], dict[str, HeaderValue]]] = [
    ("heads-differ", Severity.REFUSE, SKELETON_ONLY, {}, {"attention__head_count": 8}),
    ("heads-differ", Severity.REFUSE, SKELETON_ONLY, {}, {"attention__head_count_kv": 2}),
    ("heads-differ", Severity.REFUSE, SKELETON_ONLY, {}, {"attention__head_count_kv": (4, 2)}),
    ("heads-differ", Severity.REFUSE, SKELETON_ONLY, {}, {"attention__key_length": 8}),
    ("heads-differ", Severity.REFUSE, SKELETON_ONLY, {"ssm__group_count": 1}, {"ssm__group_count": 2}),
    ("rope-differs", Severity.REFUSE, SKELETON_ONLY, {}, {"rope__dimension_count": 8}),
    ("rope-differs", Severity.REFUSE, SKELETON_ONLY, *({"rope__dimension_sections": (size, 8)} for size in (8, 4))),
    ("window-differs", Severity.REFUSE, SKELETON_ONLY, {}, {"attention__sliding_window": 128}),
    (
        *("window-differs", Severity.REFUSE, SKELETON_ONLY),
        *({"attention__sliding_window": 64, "attention__sliding_window_pattern": value} for value in (2, (1, 0))),
    ),
    ("experts-differ", Severity.REFUSE, {"organ"}, {}, {"expert_count": 8}),
    ("experts-differ", Severity.REFUSE, {"organ"}, *({"expert_used_count": count} for count in (2, 4))),
    ("tied-embeddings", Severity.REFUSE, {"embed"}, {}, {"general__name": "with an output matrix"}),
    ("tokenizer-differs", Severity.WARN, {"embed"}, {}, {"tokenizer__ggml__pre": "llama-bpe"}),
    ("tokenizer-differs", Severity.WARN, {"embed"}, {}, {"tokenizer__ggml__model": "llama"}),
    ("tokenizer-differs", Severity.WARN, {"embed"}, {}, {"tokens": False}),
    ("other-scale", Severity.WARN, EVERY_TYPE, {}, {"block_count": 3}),
    (
        *("other-scale", Severity.WARN, EVERY_TYPE),
        *({"block_count": None, "general__size_label": size} for size in ("1B", "7B")),
    ),
    ("rope-base-differs", Severity.WARN, EVERY_TYPE, {}, {"rope__freq_base": 1e6}),
    ("rope-scaling-differs", Severity.WARN, EVERY_TYPE, {}, {"rope__scaling__type": "yarn"}),
    ("rope-scaling-differs", Severity.WARN, EVERY_TYPE, {}, {"rope__scaling__factor": 4.0}),
    ("epsilon-differs", Severity.WARN, EVERY_TYPE, {}, {"attention__layer_norm_rms_epsilon": 1e-6}),
    ("context-differs", Severity.WARN, EVERY_TYPE, {}, {"context_length": 4096}),
    ("activation-differs", Severity.WARN, {"organ"}, *({"hidden_act": name} for name in ("silu", "gelu"))),
]


@pytest.mark.parametrize(("code", "severity", "types", "ours", "theirs"), DIFFERENCES)
def test_a_header_difference_counts_only_if_it_concerns_the_grafted_organs(
    code: str, severity: Severity, types: set[str], ours: dict[str, HeaderValue], theirs: dict[str, HeaderValue]
) -> None:
    more = [("output.weight", (64, 96))] if code == "tied-embeddings" else []
    base, donor = (
        synthetic_parent("Base", **ours),
        synthetic_parent("Donor", tensors=model_tensors(more=more), **theirs),
    )
    found_in = set()
    for kind in (SKELETON, ORGAN, EMBED, NORM):
        findings = of_types(base, donor, kind)
        assert codes(findings) <= {code, "already-equal", "changed-share"}
        if code in codes(findings):
            found_in.add(kind.value)
            finding = only(findings, code)
            assert finding.severity is severity
            assert "Donor" in finding.sentence
            assert "Base" in finding.sentence
    assert found_in == types


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"attention__head_count_kv": None}, {"attention__head_count_kv": (4, 4)}),
        ({"rope__freq_base": None}, {"rope__freq_base": 10_000.0}),
        ({"rope__dimension_count": None}, {"attention__key_length": 16}),
        ({"rope__scaling__type": "none"}, {}),
        ({"expert_count": 0}, {}),
        ({"attention__sliding_window": 0}, {}),
        ({"attention__scale": 0.125}, {}),
        ({"hidden_act": "silu"}, {}),
        ({"general__size_label": "2M"}, {"general__size_label": "2.1M"}),
    ],
)
def test_a_missing_header_entry_has_the_default_of_loaders(
    ours: dict[str, HeaderValue], theirs: dict[str, HeaderValue]
) -> None:
    base, donor = synthetic_parent("Base", **ours), synthetic_parent("Donor", **theirs)
    assert codes(of_types(base, donor)) == codes(of_types(donor, base)) == {"already-equal", "changed-share"}


def test_different_head_counts_in_other_blocks_do_not_count() -> None:
    base, donor = synthetic_parent("Base"), synthetic_parent("Donor", attention__head_count_kv=(4, 2))
    assert refused(check_replacements(base, replacements_from(base, donor, SKELETON, blocks=[0]))) == set()
    assert refused(check_replacements(base, replacements_from(base, donor, SKELETON, blocks=[1]))) == {"heads-differ"}


def test_factors_that_stretch_positions_count_as_scaling() -> None:
    base = synthetic_parent("Base")
    donor = synthetic_parent("Donor", tensors=model_tensors(more=[("rope_freqs.weight", (8,))]))
    assert warned(of_types(base, donor, SKELETON)) == {"rope-scaling-differs"}


def test_another_architecture_is_refused_without_other_findings_about_headers() -> None:
    base, donor = (
        synthetic_parent("Base"),
        synthetic_parent("Donor", general__architecture="qwen2", attention__head_count=8),
    )
    assert refused(of_types(base, donor)) == {"architecture-differs"}
    assert warned(of_types(base, donor)) == set()
    assert {fit.fitting for fit in check_compatibility(base, donor).types} == {0}
    nameless = synthetic_parent("Nameless", general__architecture=None)
    assert refused(of_types(nameless, nameless)) == {"architecture-differs"}


# Tensors


def test_shapes_are_compared_as_loaders_do_without_trailing_ones() -> None:
    base, donor = synthetic_parent("Base"), synthetic_parent("Donor")
    (norm,) = replacements_from(base, donor, slots=["output_norm"])
    flat = replace(norm, after=replace(norm.after, shape=(64, 1)))
    assert refused(check_replacements(base, [flat])) == set()


def test_a_slot_that_the_base_does_not_have_is_refused() -> None:
    base = synthetic_parent("Base")
    donor = synthetic_parent("Donor", tensors=model_tensors(more=[("blk.1.ffn_up.bias", (128,))]))
    findings = of_types(base, donor, ORGAN)
    assert refused(findings) == {"slot-absent"}
    assert only(findings, "slot-absent").organs == ("blk.1.ffn_up.bias",)
    assert refused(of_types(base, donor, SKELETON)) == set()
    assert refused(check_replacements(base, replacements_from(base, donor, ORGAN, blocks=[0]))) == set()


def test_a_part_of_a_group_is_refused_unless_its_slot_was_named() -> None:
    base, donor = synthetic_parent("Base"), synthetic_parent("Donor", tensors=STRANGER)
    gate_and_up = [
        replacement for replacement in replacements_from(base, donor, ORGAN) if "down" not in replacement.before.name
    ]
    findings = check_replacements(base, gate_and_up)
    assert refused(findings) == {"partial-group"}
    assert only(findings, "partial-group").organs == ("blk.0.ffn_down.weight", "blk.1.ffn_down.weight")
    assert "block 0-1" in only(findings, "partial-group").sentence
    named = replacements_from(base, donor, slots=["ffn_gate", "ffn_up"])
    assert refused(check_replacements(base, named)) == set()
    assert refused(check_replacements(base, replacements_from(base, donor, ORGAN))) == set()


def test_a_group_from_two_donors_is_a_part_of_each() -> None:
    base, first, other = (
        synthetic_parent("Base"),
        synthetic_parent("One", tensors=STRANGER),
        synthetic_parent("Other", tensors=model_tensors(2)),
    )
    halves = [each for each in replacements_from(base, first, ORGAN) if "down" not in each.before.name]
    halves += [each for each in replacements_from(base, other, ORGAN) if "down" in each.before.name]
    donors = [finding.models[1] for finding in check_replacements(base, halves) if finding.code == "partial-group"]
    assert donors == ["One", "Other"]


def test_a_bias_that_only_the_base_has_makes_a_group_partial() -> None:
    base = synthetic_parent("Base", tensors=model_tensors(more=[("blk.0.ffn_up.bias", (128,))]))
    findings = of_types(base, synthetic_parent("Donor"), ORGAN)
    assert only(findings, "partial-group").organs == ("blk.0.ffn_up.bias",)


SCALE, INPUT, BIAS = (("blk.0.ffn_up" + suffix, (1,)) for suffix in (".scale", ".input_scale", ".bias"))


@pytest.mark.parametrize(
    ("ours", "theirs", "slots", "expected"),
    [
        ([SCALE], [SCALE], ["ffn_up", "ffn_up.scale"], []),
        ([SCALE], [SCALE], ["ffn_up"], ["scale-apart"]),
        ([SCALE], [SCALE], ["ffn_up.scale"], ["scale-apart"]),
        ([SCALE], [], ["ffn_up"], ["scale-apart"]),
        ([], [SCALE], ["ffn_up"], ["scale-apart"]),
        ([], [SCALE], ["ffn_down"], []),
        ([BIAS], [], ["ffn_up"], ["companion-apart"]),
        ([INPUT], [INPUT], ["ffn_up"], ["companion-apart"]),
    ],
)
def test_a_weight_is_not_separated_from_its_scale(
    ours: list[tuple[str, tuple[int, ...]]],
    theirs: list[tuple[str, tuple[int, ...]]],
    slots: list[str],
    expected: list[str],
) -> None:
    base = synthetic_parent("Base", tensors=model_tensors(more=ours))
    donor = synthetic_parent("Donor", tensors=model_tensors(1, more=theirs))
    findings = check_replacements(base, replacements_from(base, donor, slots=slots, blocks=[0]))
    apart = [finding for finding in findings if finding.code.endswith("-apart")]
    assert [finding.code for finding in apart] == expected
    assert all(finding.organs == ("blk.0.ffn_up.weight",) for finding in apart)


def test_the_scale_of_a_stack_cannot_follow_single_experts_and_the_advice_says_so() -> None:
    more = [("blk.0.ffn_up_exps.weight", (64, 4, 2)), ("blk.0.ffn_up_exps.scale", (2,))]
    base, donor = (synthetic_parent(tensors=model_tensors(seed, more=more)) for seed in (0, 1))
    (stack,) = replacements_from(base, donor, slots=["ffn_up_exps"])
    finding = only(check_replacements(base, [replace(stack, experts=(0,))]), "scale-apart")
    assert finding.sentence.endswith("is one for all its experts: graft the whole stack.")


def test_a_donor_with_only_some_organs_may_lack_the_companions_that_equal_the_base_s() -> None:
    base = synthetic_parent("Base", tensors=model_tensors(more=[SCALE]))
    part = replace(synthetic_parent("Donor", tensors=model_tensors(1)), complete=False)
    findings = check_replacements(base, replacements_from(base, part, slots=["ffn_up"]))
    assert "scale-apart" not in codes(findings)


@pytest.mark.parametrize("dtype", ["F64", "I8", "I16", "I32", "I64"])
def test_dtypes_that_crash_the_runtime_as_a_matrix_are_refused(dtype: str) -> None:
    donor = synthetic_parent("Donor", tensors=model_tensors(dtypes={"blk.0.ffn_up.weight": dtype}))
    findings = of_types(synthetic_parent("Base"), donor, ORGAN)
    assert refused(findings) == {"dtype-refused"}
    assert only(findings, "dtype-refused").organs == ("blk.0.ffn_up.weight",)
    fits = {fit.type: fit.fitting for fit in check_compatibility(synthetic_parent("Base"), donor).types}
    assert fits[ORGAN] == 5


@pytest.mark.parametrize("dtype", ["F16", "BF16", "Q8_0", "F64"])
def test_norms_in_anything_but_f32_are_refused_where_the_base_has_f32(dtype: str) -> None:
    tensors = model_tensors(dtypes={"blk.0.ffn_norm.weight": dtype})
    donor = synthetic_parent("Donor", tensors=tensors)
    assert refused(of_types(synthetic_parent("Base"), donor, NORM)) == {"dtype-refused"}
    expected = {"dtype-refused"} if dtype == "F64" else set()
    assert refused(of_types(synthetic_parent("Base", tensors=tensors), donor, NORM)) == expected


@pytest.mark.parametrize("dtype", ["F32", "BF16", "Q8_0", "Q4_0"])
def test_tensor_types_that_the_runtime_supports_give_only_a_note(dtype: str) -> None:
    donor = synthetic_parent("Donor", tensors=model_tensors(dtypes={"blk.0.ffn_up.weight": dtype}))
    findings = of_types(synthetic_parent("Base"), donor, ORGAN)
    assert refused(findings) == set()
    assert f"1 from F16 to {dtype}" in only(findings, "dtype-differs").sentence
    assert "size-changes" in codes(findings) or dtype == "BF16"


def test_a_base_that_cannot_be_loaded_is_always_refused() -> None:
    base = replace(synthetic_parent("Base"), unassemblable=("its byte tokens are no bytes",))
    assert "no bytes" in only(of_types(base, synthetic_parent("Donor"), ORGAN), "not-loadable").sentence
    matrix = synthetic_parent("Matrix", general__type="imatrix")
    for unusable in (base, zoo(LORA), matrix):
        assert refused(check_replacements(unusable, [])) == {"not-loadable"}
    assert refused(check_replacements(replace(synthetic_parent("Base"), complete=False), [])) == {"not-complete"}
    (finding,) = check_compatibility(synthetic_parent("Base"), matrix).findings
    assert (finding.code, finding.severity) == ("nothing-to-graft", Severity.REFUSE)


def test_tensors_that_are_only_kept_are_neither_changed_nor_grafted() -> None:
    base = synthetic_parent("Base")
    kept = replace(
        base, parts=tuple(replace(part, dtype=foreign_dtype(156, part.spec.elements, 1)) for part in base.parts)
    )
    assert refused(check_replacements(kept, replacements_from(kept, base, ORGAN))) == {"dtype-refused"}
    refusals = [
        item for item in check_replacements(base, replacements_from(base, kept, ORGAN)) if item.code == "dtype-refused"
    ]
    assert "TYPE_156. Such bytes are only kept here" in refusals[0].sentence
    assert len(refusals) == 1
    assert refused(of_types(synthetic_parent("Base"), replace(base, label="Donor"), ORGAN)) == set()


def test_an_organ_that_the_base_lacks_cannot_be_replaced_and_none_twice() -> None:
    base, donor = synthetic_parent("Base", tensors=model_tensors(blocks=1)), synthetic_parent("Donor")
    beyond = replacements_from(donor, donor, ORGAN, blocks=[1])
    assert refused(check_replacements(base, beyond)) >= {"no-such-place"}
    twice = replacements_from(base, donor, ORGAN) * 2
    assert refused(check_replacements(base, twice)) == {"place-twice"}


def test_organs_that_the_donor_lacks_stay_those_of_the_base() -> None:
    base, donor = synthetic_parent("Base"), synthetic_parent("Donor", tensors=model_tensors(blocks=1))
    fits = {fit.type: fit for fit in check_compatibility(base, donor).types}
    assert (fits[ORGAN].fitting, fits[ORGAN].total) == (3, 6)
    assert len(only(fits[ORGAN].findings, "kept-organs").organs) == 3
    assert codes(fits[EMBED].findings) == {"already-equal"}


# Lineage and changes


def test_one_foreign_block_in_a_fine_tune_is_found() -> None:
    foreign = [other if "blk.1.ffn" in own[0].name else own for own, other in zip(KIN, STRANGER, strict=True)]
    mixed = synthetic_parent("Mixed", tensors=foreign)
    finding = only(of_types(synthetic_parent("Base"), mixed), "unrelated-lineage")
    assert set(finding.organs) == {f"blk.1.ffn_{slot}.weight" for slot in ("gate", "up", "down")}
    assert "already-equal" in codes(of_types(synthetic_parent("Base"), mixed))


def test_matrices_without_fingerprints_are_of_unknown_lineage() -> None:
    donor = synthetic_parent("Donor", tensors=STRANGER)
    bare = replace(donor, parts=tuple(replace(part, fingerprint=None) for part in donor.parts))
    assert warned(of_types(synthetic_parent("Base"), bare, ORGAN)) == {"lineage-unknown"}
    assert warned(of_types(synthetic_parent("Base"), bare, NORM)) == set()


def test_theta_is_reported_before_and_after_for_each_type_that_changes() -> None:
    findings = of_types(zoo(A), zoo(CODE), ORGAN, NORM)
    sentences = {finding.field: finding.sentence for finding in findings if finding.code == "theta-changes"}
    assert sentences.keys() == {"organ", "norm"}
    assert "35.1°; in Zoo-A-2M-v1.0-F16 it is 35.2°" in sentences["organ"]


def test_many_organs_make_few_findings() -> None:
    base = synthetic_parent("Base", tensors=model_tensors(blocks=12))
    donor = synthetic_parent("Donor", tensors=model_tensors(seed=1, blocks=12, dtypes={"blk.3.attn_q.weight": "F64"}))
    assert len(of_types(base, donor)) <= 10


# Licenses and adapters


def test_licenses_are_reported_for_two_models_and_left_to_the_caller_for_replacements() -> None:
    base, donor = (
        synthetic_parent("Base", general__license="gpl-3.0"),
        synthetic_parent("Donor", general__license="cc-by-nc-4.0"),
    )
    assert warned(check_compatibility(base, donor).findings) == {"licenses-conflict"}
    assert warned(of_types(base, donor)) == set()


def adapter(
    *tensors: str, entries: Iterable[KeyValue] = (), more: Iterable[tuple[str, tuple[int, ...]]] = ()
) -> Parent:
    """Return a synthetic adapter of rank 4 for these tensors."""
    shapes = {name: shape for spec, _ in KIN for name, shape in [(spec.name, spec.shape)]}
    made: dict[str, tuple[int, ...]] = dict(more)
    for name in tensors:
        row, rows = shapes[name]
        embeds = name == "token_embd.weight"
        made[f"{name}.lora_a"] = (4, rows) if embeds else (row, 4)
        made[f"{name}.lora_b"] = (4, row) if embeds else (4, rows)
    header_entries = {entry.key: entry for entry in (text("general.type", "adapter"), text("adapter.type", "lora"))}
    header_entries |= {"general.architecture": text("general.architecture", "llama")} | {
        entry.key: entry for entry in entries
    }
    names = {spec.name for spec, _ in KIN} - made.keys()
    data = file_bytes(
        header_entries.values(), model_tensors(more=made.items(), without=names, dtypes=dict.fromkeys(made, "F32"))
    )
    return parent_from(data, "Adapter")


def test_an_adapter_of_a_matrix_and_of_the_token_embedding_fits() -> None:
    untied = synthetic_parent(tensors=model_tensors(more=[("output.weight", (64, 96))]))
    assert codes(check_adapter(untied, adapter("blk.0.ffn_up.weight", "token_embd.weight"))) == {"adapter-rank"}


def invocation_tokens(*tokens: int) -> KeyValue:
    return KeyValue("adapter.alora.invocation_tokens", ValueType.ARRAY, tokens, ValueType.UINT32)


def test_an_adapter_is_not_merged_into_weights_that_are_stored_divided_by_a_scale() -> None:
    base = synthetic_parent(tensors=model_tensors(more=[SCALE]))
    findings = check_adapter(base, adapter("blk.0.ffn_up.weight", "blk.1.ffn_up.weight"))
    assert only(findings, "adapter-misfit").organs == ("blk.0.ffn_up.weight",)


MERGED_TYPE_ENTRY = text("adapter.type", "lora-merge")


def test_magnitudes_and_whole_tensors_fit_if_the_type_of_the_adapter_allows_them() -> None:
    more = [("blk.0.ffn_up.weight.lora_magnitude", (128,)), ("output_norm.weight", (64,))]
    findings = check_adapter(synthetic_parent(), adapter("blk.0.ffn_up.weight", more=more, entries=[MERGED_TYPE_ENTRY]))
    assert codes(findings) == {"adapter-rank"}
    assert "changes 1 tensors at rank 4, with an alpha of 0 and has 1 whole tensor" in findings[0].sentence


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([("blk.0.ffn_up.weight.lora_magnitude", (64,))], "magnitudes of 64 do not fit the 128 rows of 64×128"),
        ([("blk.0.ffn_down.weight.lora_magnitude", (64,))], "magnitudes without factors, or a whole tensor beside"),
        ([("blk.0.ffn_up.weight", (64, 128))], "a whole tensor beside factors, for blk.0.ffn_up.weight"),
        ([("output_norm.weight", (63,))], "a whole tensor of 63 cannot take the place of 64"),
        ([("blk.7.attn_norm.weight", (64,))], "has no such tensor"),
        ([("token_embd.weight", (64, 96))], "uses one matrix for both"),
    ],
)
def test_magnitudes_and_whole_tensors_that_do_not_fit_are_refused(
    more: list[tuple[str, tuple[int, ...]]], sentence: str
) -> None:
    findings = check_adapter(synthetic_parent(), adapter("blk.0.ffn_up.weight", more=more, entries=[MERGED_TYPE_ENTRY]))
    refusals = [finding for finding in findings if finding.severity is Severity.REFUSE]
    assert {finding.code for finding in refusals} == {"adapter-misfit"}
    assert any(sentence in finding.sentence for finding in refusals)


def test_magnitudes_in_a_plain_lora_are_refused_as_a_runtime_would_not_apply_them() -> None:
    more = [("blk.0.ffn_up.weight.lora_magnitude", (128,))]
    findings = check_adapter(synthetic_parent(), adapter("blk.0.ffn_up.weight", more=more))
    assert "it is a DoRA, but its adapter.type is not 'lora-merge'" in only(findings, "adapter-misfit").sentence


ADAPTER_FAULTS = [
    ("not-an-adapter", adapter("blk.0.ffn_up.weight", entries=[text("general.type", "model")])),
    ("adapter-not-lora", adapter("blk.0.ffn_up.weight", entries=[text("adapter.type", "ia3")])),
    ("adapter-not-lora", adapter("blk.0.ffn_up.weight", entries=[invocation_tokens(70, 71)])),
    ("adapter-misfit", adapter("token_embd.weight")),
    ("architecture-differs", adapter("blk.0.ffn_up.weight", entries=[text("general.architecture", "qwen2")])),
    ("adapter-misfit", adapter("blk.0.ffn_up.weight", more=[("blk.0.ffn_down.weight.lora_a", (128, 4))])),
    (
        "adapter-misfit",
        adapter(more=[("blk.9.ffn_up.weight.lora_a", (64, 4)), ("blk.9.ffn_up.weight.lora_b", (4, 128))]),
    ),
    (
        "adapter-misfit",
        adapter(more=[("blk.0.ffn_up.weight.lora_a", (32, 4)), ("blk.0.ffn_up.weight.lora_b", (4, 128))]),
    ),
    ("adapter-misfit", adapter("blk.0.ffn_up.weight", more=[("output_norm.weight.saved", (64,))])),
    ("adapter-misfit", adapter()),
]


@pytest.mark.parametrize(("code", "faulty"), ADAPTER_FAULTS)
def test_an_adapter_that_does_not_fit_is_refused(code: str, faulty: Parent) -> None:
    assert refused(check_adapter(synthetic_parent(), faulty)) == {code}


def test_an_adapter_of_an_unreadable_tensor_type_is_refused() -> None:
    base = synthetic_parent(tensors=model_tensors(width=256, blocks=1, dtypes={"blk.0.ffn_up.weight": "Q8_K"}))
    factors = [("blk.0.ffn_up.weight.lora_a", (256, 4)), ("blk.0.ffn_up.weight.lora_b", (4, 512))]
    assert refused(check_adapter(base, adapter(more=factors))) == {"dtype-refused"}


# Groups


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("blk.2.ffn_up.weight", ("text", 2, "feed-forward")),
        ("blk.2.ffn_down_exps.scale", ("text", 2, "experts")),
        ("blk.2.ssm_in.input_scale", ("text", 2, "state space")),
        ("blk.2.ffn_up_shexp.weight", ("text", 2, "shared experts")),
        ("blk.2.attn_q.weight", ("text", 2, "attention")),
        ("a.blk.2.ffn_up_1.weight", ("audio", 2, "second feed-forward")),
        ("a.proj_blk.2.ffn_up.weight", ("audio", 2, "proj_blk.feed-forward")),
        ("blk.2.ffn_norm.weight", None),
    ],
)
def test_organs_that_only_work_together_are_in_one_group(name: str, group: tuple[str, int, str] | None) -> None:
    assert group_of(place_of(name)) == group


# Hostile headers

KEYS = (
    *("general.type", "general.license", "general.size_label", "general.name", "general.base_model.0.name"),
    *("llama.block_count", "llama.embedding_length", "llama.context_length", "llama.attention.head_count"),
    *("llama.attention.head_count_kv", "llama.attention.key_length", "llama.rope.dimension_count"),
    *("llama.rope.dimension_sections", "llama.rope.freq_base", "llama.rope.scaling.type", "llama.rope.scaling.factor"),
    *("llama.attention.sliding_window", "llama.attention.sliding_window_pattern", "llama.expert_count"),
    *("llama.attention.layer_norm_rms_epsilon", "llama.hidden_act", "adapter.type", "adapter.lora.alpha"),
    *("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens"),
)
HOSTILE = st.lists(st.sampled_from(KEYS), unique=True, max_size=12).flatmap(
    lambda keys: st.tuples(*(entries(key) for key in keys)).map(list)
)


@pytest.mark.long
@PATIENT
@given(ours=HOSTILE, theirs=HOSTILE)
def test_no_header_makes_a_check_raise(ours: list[KeyValue], theirs: list[KeyValue]) -> None:
    architecture = text("general.architecture", "llama")
    base, donor = (
        parent_from(file_bytes([architecture, *values], SMALL), label)
        for values, label in ((ours, "Base"), (theirs, "Donor"))
    )
    found = check_compatibility(base, donor)
    for findings in (found.findings, of_types(base, donor), check_adapter(base, donor)):
        assert all(finding.sentence.endswith((".", "?")) and finding.code for finding in findings)
    assert sum(fit.total for fit in found.types) == (len(base.parts) if donor.kind in WEIGHT_KINDS else 0)
