"""Log-likelihoods of tokens, and how far two distributions of the next token are apart, from logits. Pure.

Logits are arrays of float32, a row for each position. They are large: 50 MB for a window of 256 tokens and a vocabulary
of 49,152. So they are read in pieces of some rows that fit into a processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """The scores of one model on consecutive tokens: arrays with an element for each token."""

    surprises: NDArray[np.float64]
    """-ln of the probability of the token, in nats; not finite where the logits are not."""
    divergences: NDArray[np.float64] | None = None
    """The Kullback-Leibler divergence, in nats, of this model's distribution of the token from that of the reference:
    the sum over the vocabulary of p ln(p / q), p by the reference and q by this model. None without a reference."""
    same_top: NDArray[np.bool_] | None = None
    """Whether both think the same token the most likely one."""


def surprises(logits: NDArray[np.float32], following: Sequence[int]) -> Likelihoods:
    """Return the surprises of `following`, the token that comes after each row of `logits`."""
    chosen = np.asarray(following)
    with np.errstate(all="ignore"):
        totals = np.concatenate([_log_total(piece)[0] for piece, _ in _pieces(logits, logits)])
        return Likelihoods(totals - logits[np.arange(len(chosen)), chosen])


def compared(
    reference: NDArray[np.float32], logits: NDArray[np.float32], following: Sequence[int]
) -> tuple[Likelihoods, Likelihoods]:
    """Return the surprises by the reference, and the likelihoods by a model with its divergence from the reference."""
    chosen, rows = np.asarray(following), np.arange(len(following))
    totals, totals_reference, divergences, same = [], [], [], []
    with np.errstate(all="ignore"):
        for ours, theirs in _pieces(logits, reference):
            total, _ = _log_total(ours)
            total_reference, powers = _log_total(theirs)
            difference = np.subtract(theirs, ours)
            mean = np.einsum("ij,ij->i", powers, difference) / powers.sum(axis=1)
            totals.append(total)
            totals_reference.append(total_reference)
            divergences.append(mean - total_reference + total)
            same.append(ours.argmax(axis=1) == theirs.argmax(axis=1))
        base = np.concatenate(totals_reference) - reference[rows, chosen]
        own = np.concatenate(totals) - logits[rows, chosen]
        divergence = np.maximum(np.concatenate(divergences), 0.0)
    return Likelihoods(base), Likelihoods(own, divergence, np.concatenate(same))


def joined(parts: Sequence[Likelihoods]) -> Likelihoods:
    """Return the likelihoods of consecutive parts as those of the whole."""
    divergences = [part.divergences for part in parts if part.divergences is not None]
    same = [part.same_top for part in parts if part.same_top is not None]
    return Likelihoods(
        np.concatenate([part.surprises for part in parts]),
        np.concatenate(divergences) if divergences else None,
        np.concatenate(same) if same else None,
    )


def _pieces(
    first: NDArray[np.float32], second: NDArray[np.float32]
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    rows = max(1, PIECE_BYTES // (4 * first.shape[1]))
    return ((first[start : start + rows], second[start : start + rows]) for start in range(0, len(first), rows))


def _log_total(logits: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return ln of the sum of exp of each row, and exp of the rows less their highest values."""
    highest = logits.max(axis=1, keepdims=True)
    powers: NDArray[np.float32] = np.exp(logits - highest)
    return np.log(powers.sum(axis=1).astype(np.float64)) + highest[:, 0], powers
