"""Find organs, rank them, list the most similar ones, and compare two models.

    python examples/find_and_rank.py [FOLDER OR URL OF A REGISTRY]

Without a registry, it uses the small models of examples/zoo, in a temporary registry.
"""

from __future__ import annotations

import sys

from opening import opened

from organs.registry import LocalRegistry
from organs.registry.models import RegisteredModel


def main() -> None:
    with opened(sys.argv[1:]) as registry:
        # A query is a list of terms. Each result has the place of the organ and its measures.
        best = registry.search("type:organ sort:-theta", limit=5)
        print("Feed-forward tensors with the highest θ:")
        for organ in best:
            print(f"  {organ.theta:5.1f}°  {organ.name:24} {organ.model}")

        # Counts of all results of a query, without the results themselves.
        print("Tensors by type:", dict(registry.count().fields["type"]))

        # Likeness is the correlation of the weights: 1 is the same, 0 is unrelated.
        first = best.items[0]
        print(f"Most similar to {first.name} of {first.model}:")
        for organ in registry.search(f"like:{first.digest}", limit=5):
            print(f"  {organ.likeness:6.3f}  {organ.model}")

        compare_with_relative(registry, registry.model(first.model))


def compare_with_relative(registry: LocalRegistry, model: RegisteredModel) -> None:
    """Print how a model differs from its nearest relative, organ by organ."""
    relatives = [relative for relative in model.relatives if relative.model and relative.likeness is not None]
    if not relatives:
        print(f"{model.name} has no relatives in this registry")
        return
    nearest = max(relatives, key=lambda relative: relative.likeness or 0.0)
    other = registry.model(nearest.model or "")
    print(f"{model.name} and {other.name} have a likeness of {nearest.likeness:.3f}:")
    others = {organ.name: organ for organ in other.organs}
    pairs = [(organ, others[organ.name]) for organ in model.organs if organ.name in others]
    equal = sum(first.digest == second.digest for first, second in pairs)
    print(f"  {equal} of {len(pairs)} tensors have the same bytes")
    changed = sorted(pairs, key=lambda pair: -abs((pair[0].theta or 0.0) - (pair[1].theta or 0.0)))
    for first, second in changed[:3]:
        print(f"  θ {first.theta:5.1f}° and {second.theta:5.1f}°  {first.name}")


if __name__ == "__main__":
    main()
