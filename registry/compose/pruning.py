"""Experts that are left out of the mixtures of a base: which items of which tensors stay, and what prevents it.

A block loses the same experts in its stacks, their biases and scales, its router, and the biases by which the router
selects. Runtimes read one number of experts for all blocks, and select a part of them for each token, in some models
by groups of neighbouring experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from organs.registry.amounts import names_text, plural_text, ranges_text
from organs.registry.anatomy import EXPERT_DIMENSIONS, is_tied_to_experts
from organs.registry.compose.parents import Parent, Part
from organs.registry.compose.recipe import ExpertChoice
from organs.registry.compose.selection import within
from organs.registry.entities.finding import Finding, Severity
from organs.registry.experts import EXPERTS_A_STACK_MAX

EXPERTS_FIELD = "experts"
COUNT_KEY, USED_KEY = "expert_count", "expert_used_count"
GROUPS_KEY, USED_GROUPS_KEY = "expert_group_count", "expert_group_used_count"
"""Keys of the header, after the name of the architecture."""
GROUP_SCORED = 2
"""The experts of a group by whose sum runtimes select groups: a group needs as many."""

BlockKey = tuple[str, int]
"""Tower and block."""


@dataclass(slots=True)
class Pruning:
    """Which experts stay, and the findings."""

    kept: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By tensor that changes: the items of its last dimension that stay, in rising order."""
    hyperparameters: dict[str, int] = field(default_factory=dict)
    """The entries of the header that change."""
    findings: list[Finding] = field(default_factory=list)

    def refuse(self, code: str, sentence: str, at: str, organs: Sequence[str] = ()) -> None:
        """Add a refusal about the field `at` of the recipe."""
        self.findings.append(Finding(Severity.REFUSE, code, sentence, at, organs=tuple(organs)))


def pruned(base: Parent, tensors: Iterable[Part], steps: Mapping[str, ExpertChoice]) -> Pruning:
    """Return what `steps` (by the fields of the recipe) leave of the experts in `tensors`, or why they cannot be done.

    The tensors have the names and places of those of `base`. A block that no step selects keeps all its experts; a
    block without experts stays as it is.
    """
    pruning = Pruning()
    blocks: dict[BlockKey, list[Part]] = {}
    for part in tensors:
        if part.place.slot in EXPERT_DIMENSIONS and part.place.block is not None:
            blocks.setdefault((part.place.tower.value, part.place.block), []).append(part)
    if not blocks:
        sentence = f"{base.label} has no stacks of experts, so there are no experts to select."
        pruning.refuse("nothing-selected", sentence, next(iter(steps)))
        return pruning
    count = _checked_count(base, blocks, pruning)
    if count is None:
        return pruning
    kept = _kept_by_block(base, blocks, steps, count, pruning)
    for sentence in _faults(base, kept, count):
        pruning.refuse("experts-refused", sentence, EXPERTS_FIELD)
    if pruning.findings:
        return pruning
    every = tuple(range(count))
    changed = {part.name: kept[key] for key, parts in blocks.items() for part in parts if kept[key] != every}
    if changed:
        rest = len(next(iter(kept.values())))
        names = [part.name for parts in blocks.values() for part in parts]
        sentence = (
            f"{rest} of {count} experts stay in {plural_text(len(blocks), 'block', 'blocks')}, in "
            f"{plural_text(len(names), 'tensor', 'tensors')}; the router selects among them only."
        )
        pruning.findings.append(Finding(Severity.INFO, "experts-pruned", sentence, EXPERTS_FIELD, (base.label,)))
        pruning.kept, pruning.hyperparameters = changed, {f"{base.header.architecture}.{COUNT_KEY}": rest}
    return pruning


def _checked_count(base: Parent, blocks: Mapping[BlockKey, Sequence[Part]], pruning: Pruning) -> int | None:
    """Return the number of experts in each block of a base; None, with refusals, if its experts cannot be told."""
    tied = [part.name for part in base.parts if is_tied_to_experts(part.place)]
    if tied:
        sentence = f"{names_text(tied)} of {base.label} depend on all experts, in a way that cannot be cut here."
        pruning.refuse("experts-refused", sentence, EXPERTS_FIELD, tied)
    key = f"{base.header.architecture}.{COUNT_KEY}"
    count = base.header.integer(key)
    if count is None or not 1 <= count <= EXPERTS_A_STACK_MAX:
        sentence = f"{key} of {base.label} is not one number of experts for all blocks, up to {EXPERTS_A_STACK_MAX:,}."
        pruning.refuse("experts-refused", sentence, EXPERTS_FIELD)
        return None
    odd = [
        part.name
        for parts in blocks.values()
        for part in parts
        if len(part.shape) != EXPERT_DIMENSIONS[part.place.slot] + 1 or part.shape[-1] != count
    ]
    if odd:
        sentence = f"{base.label} states {count} experts, and {names_text(odd)} have another number."
        pruning.refuse("experts-refused", sentence, EXPERTS_FIELD, odd)
    blocked = [
        part.name
        for parts in blocks.values()
        for part in parts
        if len(part.shape) == 1 and part.dtype.block_elements > 1
    ]
    if blocked:
        sentence = f"{names_text(blocked)} of {base.label} are stored in blocks of values, which cannot be cut."
        pruning.refuse("experts-refused", sentence, EXPERTS_FIELD, blocked)
    return None if pruning.findings else count


def _kept_by_block(
    base: Parent,
    blocks: Mapping[BlockKey, Sequence[Part]],
    steps: Mapping[str, ExpertChoice],
    count: int,
    pruning: Pruning,
) -> dict[BlockKey, tuple[int, ...]]:
    """Return the experts that stay in each block; mistakes of the steps become refusals."""
    kept = dict.fromkeys(blocks, tuple(range(count)))
    done: dict[BlockKey, str] = {}
    for at, step in steps.items():
        selected = [key for key in blocks if not step.blocks or within(key[1], step.blocks)]
        named = "keep" if step.keep else "drop"
        last = max(last for _, last in step.keep or step.drop)
        if not selected:
            sentence = f"{base.label} has no experts in these blocks: it has them in {_blocks_text(blocks)}."
            pruning.refuse("nothing-selected", sentence, f"{at}.blocks")
            continue
        if last >= count:
            sentence = f"{base.label} has {count} experts in each block, numbered from 0: there is no expert {last}."
            pruning.refuse("no-such-expert", sentence, f"{at}.{named}")
            continue
        twice = [key for key in selected if key in done]
        if twice:
            others = ", ".join(dict.fromkeys(done[key] for key in twice))
            sentence = f"Both {at} and {others} choose experts of {_blocks_text(twice)}: remove one of them."
            pruning.refuse("overlapping-steps", sentence, f"{at}.blocks" if step.blocks else at)
        done |= dict.fromkeys(selected, at)
        kept |= dict.fromkeys(selected, step.kept(count))
    return kept


def _faults(base: Parent, kept: Mapping[BlockKey, tuple[int, ...]], count: int) -> Iterator[str]:
    """Yield why runtimes cannot run a model with the experts `kept` of `count` in each block."""
    prefix = f"{base.header.architecture}."
    numbers = {len(experts) for experts in kept.values()}
    if len(numbers) > 1:
        parts = [
            f"{number} in {_blocks_text([key for key, experts in kept.items() if len(experts) == number])}"
            for number in sorted(numbers)
        ]
        yield f"All blocks need the same number of experts, and they would have {', '.join(parts)}."
    least = min(numbers)
    used, is_stated = base.header.integer(prefix + USED_KEY), base.header.field(prefix + USED_KEY) is not None
    if is_stated and used is None:
        yield f"{prefix}{USED_KEY} of {base.label} is a list: blocks that use different numbers are not cut here."
    if least < max(1, used or 0):
        yield f"{base.label} uses {used or 1} experts for each token, and only {least} would stay."
    groups = base.header.integer(prefix + GROUPS_KEY) or 1
    if groups < 2:
        return
    if count % groups:
        yield f"{base.label} has {count} experts in {groups} groups, which cannot be of one size."
        return
    of_group = {key: Counter(number // (count // groups) for number in experts) for key, experts in kept.items()}
    uneven = [key for key, sizes in of_group.items() if len(sizes) < groups or len(set(sizes.values())) > 1]
    if uneven:
        yield (
            f"The router of {base.label} first selects among {groups} groups of {count // groups} experts: "
            f"keep the same number in each group, which is not so in {_blocks_text(uneven)}."
        )
    elif least // groups < GROUP_SCORED:
        yield f"The router of {base.label} compares groups by {GROUP_SCORED} experts: keep as many in each group."
    elif used and (selected := base.header.integer(prefix + USED_GROUPS_KEY)) and selected * (least // groups) < used:
        yield (
            f"{base.label} uses {used} experts for each token from {selected} groups, which would have only "
            f"{selected * (least // groups)}."
        )


def _blocks_text(keys: Sequence[BlockKey] | Mapping[BlockKey, object]) -> str:
    """Return blocks as text for people: `block 3`, `blocks 1-60`."""
    blocks = sorted({block for _, block in keys})
    return f"{'block' if len(blocks) == 1 else 'blocks'} {ranges_text(blocks)}"
