"""Digests of all results of this package as JSON: they must be the same on other, simulated processors.

python -m tests.transform.print_digests
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf import dtype_by_name
from organs.registry.gguf.quants import quantize
from organs.registry.transform import (
    Adapter,
    Blending,
    Computation,
    Operand,
    Plain,
    Purification,
    PurifyMethod,
    Whole,
    computed,
)
from organs.registry.transform.blend import METHODS, PARAMETERS
from organs.registry.transform.purify import cleaned
from organs.registry.transform.reproducible import angle_of, cosine, exponential, logarithm, sine
from organs.registry.transform.values import WANTED, WRITTEN_AS_THEY_ARE

COUNT = (1 << 16) + (1 << 12) + 96
LONGEST = 20
"""The base-two logarithm of the length of a full window."""


def whole_numbers(count: int, seed: int) -> NDArray[np.float64]:
    """Return values made without functions that may differ between processors: sums of random integers."""
    drawn = np.random.default_rng(seed).integers(-(1 << 20), 1 << 20, (3, count))
    values: NDArray[np.float64] = (drawn[0] + drawn[1] + drawn[2]) / float(1 << 26)
    return values


def organ(shape: tuple[int, ...], dtype_name: str, seed: int) -> Plain:
    dtype = dtype_by_name(dtype_name)
    data = quantize(whole_numbers(int(np.prod(shape)), seed), dtype)
    return Plain(lambda offset, size: data[offset : offset + size], dtype, shape)


def digest(computation: Computation) -> str:
    summed = hashlib.sha256()
    for piece in computed(computation):
        summed.update(piece)
    return summed.hexdigest()


def functions() -> dict[str, str]:
    """Return the digests of the functions of arrays, and the values of those of numbers."""
    values = whole_numbers(1 << 12, 10)
    angles = [abs(value) for value in values[:100].tolist()]
    return {
        "exponential": hashlib.sha256(exponential(-np.abs(values) * 1e4).tobytes()).hexdigest(),
        "logarithm": hashlib.sha256(logarithm(np.abs(values) + 1e-9).tobytes()).hexdigest(),
        "angles": str([(sine(x), cosine(x), sine(-1e3 * x), cosine(1e3 * x), angle_of(1.0, 1.0, x)) for x in angles]),
    }


def digests() -> dict[str, str]:
    """Return the digest of each kind of result."""
    results = {}
    flat, matrix = organ((COUNT,), "F16", 1), organ((512, 600), "F16", 2)
    pair = (organ((512, 16), "F32", 3), organ((16, 600), "F32", 4))
    dora = Adapter(*pair, 32.0, 0.7, organ((600,), "F32", 11))
    lookup = (organ((16, 600), "F32", 5), organ((16, 512), "F32", 6))
    for name in WRITTEN_AS_THEY_ARE:
        dtype = dtype_by_name(name)
        results[f"encoded as {name}"] = digest(Computation(flat, dtype))
        results[f"merged as {name}"] = digest(Computation(matrix, dtype, (Adapter(*pair, 32.0, 0.7),)))
        steps = (Whole(organ((512, 600), "Q8_0", 12), 0.3), dora)
        results[f"DoRA on a part of a whole tensor as {name}"] = digest(Computation(matrix, dtype, steps))
        for method in PurifyMethod:
            results[f"{method} as {name}"] = digest(Computation(flat, dtype, purification=Purification(method)))
    for name in (name for name in WANTED if name not in WRITTEN_AS_THEY_ARE):
        results[f"encoded as {name}"] = digest(Computation(organ((512, 600), "F16", 2), dtype_by_name(name)))
    f32 = dtype_by_name("F32")
    results["embedding"] = digest(Computation(matrix, f32, (Adapter(*lookup, 7.0, 0.3),), is_token_embedding=True))
    donors = tuple(organ((512, 600), name, seed) for name, seed in (("F16", 7), ("Q8_0", 8), ("F32", 9)))
    for name, method in METHODS.items():
        chosen = donors[: method.donors[1] or 3]
        usual = {"weight": 0.5, "density": 0.4, "t": 0.3}
        settings = {
            key: [usual.get(key, value)] * len(chosen) if PARAMETERS[key].is_each else usual.get(key, value)
            for key, value in method.defaults.items()
        }
        blending = Blending(name, tuple(map(Operand, chosen)), settings, "0/tensor")
        results[f"blend by {name}"] = digest(Computation(matrix, f32, blend=blending))
    results |= functions()
    for exponent in range(1, LONGEST + 1):
        values = whole_numbers(1 << exponent, exponent)
        for method in PurifyMethod:
            clean = cleaned(values, Purification(method, 0.7))
            results[f"{method} of 2^{exponent}"] = hashlib.sha256(clean.tobytes()).hexdigest()
    return results


if __name__ == "__main__":
    print(json.dumps(digests()))
