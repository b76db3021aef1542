"""Random queries like those of users of a catalog: some hundreds, with a few popular ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from urllib.parse import urlencode

from bench.populated import ARCHITECTURES, BLOCKS, CONTRIBUTORS, DTYPES, LICENSES, SUBJECTS
from organs.registry.anatomy import EXAMPLE_SLOTS
from organs.registry.local import LocalRegistry

TYPES = {"organ": 0.6, "skeleton": 0.25, "norm": 0.05, "embed": 0.1}
SORTS = ("", "", "", "sort:-spectral", "sort:-z", "sort:rank", "sort:-size", "sort:theta")
FACETS_ASKED = (0, 1, 1, 2, 2, 3)
PAGES = {1: 1.0, 2: 0.3, 3: 0.1}
"""The page number of a query, and its frequency relative to the first page."""
PAGE = 50


def query(random: Random, *, different: bool = False) -> str:
    """Return a query as from the facets, the histogram and the search box; with `different`, queries hardly ever
    repeat.
    """
    terms = _facets(random)
    if random.random() < 0.5 or different:
        bound = 5 * random.randrange(4, 14) if not different else round(random.uniform(20, 60), 4)
        terms.append(f"theta>={bound}")
        if random.random() < 0.3:
            terms.append(f"theta<{bound + 5 * random.randrange(1, 5)}")
    more = {
        0.10: lambda: random.choice(SUBJECTS),
        0.15: lambda: f"block:{(low := random.randrange(BLOCKS))}-{low + random.randrange(8)}",
        0.20: lambda: f"spectral>={random.randrange(1, 8) / 10}",
        0.24: lambda: f"by:contributor-{random.randrange(CONTRIBUTORS)}",
        0.27: lambda: f"model:lab-{random.randrange(97)}/*",
        0.30: lambda: "unique:organ",
    }
    chance = random.random()
    terms += [make() for share, make in more.items() if chance < share][:1]
    return " ".join([*terms, random.choice(SORTS)]).strip()


def _facets(random: Random) -> list[str]:
    values = {
        "type": TYPES,
        "slot": dict.fromkeys(EXAMPLE_SLOTS, 1.0),
        "dtype": DTYPES,
        "arch": ARCHITECTURES,
        "license": {name or "none": share for name, share in LICENSES.items()},
    }
    chosen = random.sample(sorted(values), random.choice(FACETS_ASKED))
    return [f"{name}:{random.choices(list(values[name]), list(values[name].values()))[0]}" for name in chosen]


def asked_again(registry: LocalRegistry, number: int, seed: int = 1) -> tuple[list[str], list[float]]:
    """Return the parameters of the first pages of `number` different queries, and their frequencies (Zipf)."""
    random = Random(seed)
    queries: dict[str, None] = {}
    while len(queries) < number:
        queries[query(random)] = None
    addresses, weights = [], []
    for rank, text in enumerate(queries, 1):
        after = None
        for share in PAGES.values():
            addresses.append(parameters(text, after))
            weights.append(share / rank)
            after = registry.search(text, limit=PAGE, after=after).next
            if after is None:
                break
    return addresses, list(accumulate(weights))


def all_different(seed: int = 2) -> Iterator[str]:
    """Return the parameters of first pages, all different."""
    random, seen = Random(seed), set()
    while True:
        text = query(random, different=True)
        if text not in seen:
            seen.add(text)
            yield parameters(text)


def drawn(addresses: Sequence[str], weights: Sequence[float], seed: int = 3) -> Iterator[str]:
    """Yield the `addresses` without end, by their cumulative `weights`."""
    random = Random(seed)
    while True:
        yield random.choices(addresses, cum_weights=weights)[0]


def parameters(text: str, after: str | None = None) -> str:
    """Return a query as the part of an address after `?`."""
    return urlencode({"q": text, "limit": PAGE} | ({} if after is None else {"after": after}))
