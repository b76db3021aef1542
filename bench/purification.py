"""Measure what purification changes in feed-forward organs of the zoo: θ (degrees), correlation with the source.

    python -m bench.purification
    python -m bench.purification --model examples/zoo/Zoo-B-2M-v1.0-Q8_0.gguf --keep 0.9

Figures are means over all feed-forward matrices of a model. θ is that of the encoded organs, before and after; the
correlation is Pearson's over all values. `mean` and `deviation` are the largest changes of these, in standard
deviations.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from organs.registry.anatomy import OrganType, place_of
from organs.registry.gguf import MemorySource, dtype_by_name, read_header
from organs.registry.gguf.quants import decode
from organs.registry.measure import measure
from organs.registry.transform import Computation, Plain, Purification, PurifyMethod, computed

ZOO = Path(__file__).parent.parent / "examples" / "zoo"
MODELS = tuple(
    ZOO / f"Zoo-{name}.gguf" for name in ("A-2M-v1.0-F16", "A-2M-v1.0-Q8_0", "B-2M-v1.0-Q8_0", "C-1M-v1.0-Q8_0")
)
KEEPS = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of purification on one organ."""

    theta_before: float
    theta_after: float
    spectral_before: float
    spectral_after: float
    correlation: float
    mean: float
    deviation: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, action="append", help="a GGUF file, again for more (default four of the zoo)"
    )
    parser.add_argument("--keep", type=float, action="append", help="for spectral (default 0.5, 0.9 and 0.99)")
    arguments = parser.parse_args()
    ways = [Purification(PurifyMethod.SPECTRAL, keep) for keep in arguments.keep or KEEPS]
    print(
        f"{'model':<26}{'method':<16}{'θ':>14}{'spectral signal':>18}{'correlation':>13}{'mean':>10}{'deviation':>11}"
    )
    with threadpool_limits(1, user_api="blas"):
        for path in arguments.model or MODELS:
            organs = list(feed_forward(path))
            for way in (*ways, Purification(PurifyMethod.FRACTAL)):
                print_line(path.stem, way, [effect(organ, way) for organ in organs])
        print_speed()


def feed_forward(path: Path) -> Iterator[Plain]:
    """Return the feed-forward matrices of a file."""
    source = MemorySource(path.read_bytes(), path.name)
    header = read_header(source)
    for info in header.tensors:
        if place_of(info.name).type is OrganType.ORGAN and len(info.shape) > 1:
            data = source.read_at(header.data_offset + info.offset, info.size_bytes)
            yield plain(data, info.shape, info.dtype.name)


def plain(data: bytes, shape: tuple[int, ...], dtype_name: str) -> Plain:
    return Plain(lambda offset, size: data[offset : offset + size], dtype_by_name(dtype_name), shape)


def effect(organ: Plain, way: Purification) -> Effect:
    """Purify one organ into its own dtype."""
    clean = plain(b"".join(computed(Computation(organ, organ.dtype, purification=way))), organ.shape, organ.dtype.name)
    before, after = (measure(values.read, values.shape, values.dtype) for values in (organ, clean))
    old, new = (decode(values.read(0, values.size_bytes), values.dtype).astype(np.float64) for values in (organ, clean))
    return Effect(
        before.theta or 0.0,
        after.theta or 0.0,
        before.spectral_signal or 0.0,
        after.spectral_signal or 0.0,
        float(np.corrcoef(old, new)[0, 1]),
        abs(old.mean() - new.mean()) / old.std(),
        abs(old.std() - new.std()) / old.std(),
    )


def print_line(model: str, way: Purification, effects: list[Effect]) -> None:
    def mean(name: str) -> float:
        return float(statistics.mean(getattr(effect, name) for effect in effects))

    method = f"{way.method} {way.keep:g}" if way.method is PurifyMethod.SPECTRAL else str(way.method)
    print(
        f"{model:<26}{method:<16}{mean('theta_before'):>6.1f} → {mean('theta_after'):>5.1f}"
        f"{mean('spectral_before'):>10.3f} → {mean('spectral_after'):.3f}{mean('correlation'):>13.4f}"
        f"{max(effect.mean for effect in effects):>10.1e}{max(effect.deviation for effect in effects):>11.1e}"
    )


def print_speed() -> None:
    """Print millions of values per second of processor time, for 16 Mi values in Q8_0."""
    elements = 1 << 24
    block = np.random.default_rng(0).integers(0, 256, (elements // 32, 34), np.uint8)
    block[:, :2] = (0x00, 0x20)
    organ = plain(block.tobytes(), (4096, elements // 4096), "Q8_0")
    assert math.prod(organ.shape) == elements
    for way in (Purification(PurifyMethod.SPECTRAL), Purification(PurifyMethod.FRACTAL), None):
        started = time.process_time()
        for _ in computed(Computation(organ, organ.dtype, purification=way)):
            pass
        seconds = time.process_time() - started
        print(f"{way.method if way else 'encoded again':<16}{elements / 1e6 / seconds:>6.1f} million values a second")


if __name__ == "__main__":
    main()
