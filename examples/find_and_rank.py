"""Find organs, rank them, see who is like whom, compare two models.

    python examples/find_and_rank.py [FOLDER OR URL OF A REGISTRY]

Without one it works on the little models of examples/zoo, in a temporary registry.
"""

from __future__ import annotations

import sys

from opening import opened

from organs.registry import LocalRegistry
from organs.registry.models import RegisteredModel


def main() -> None:
    with opened(sys.argv[1:]) as registry:
        # A query is a row of terms. Every organ that is found tells where it is and what was measured.
        best = registry.search("type:organ sort:-theta", limit=5)
        print("Feed-forward organs with the highest θ:")
        for organ in best:
            print(f"  {organ.theta:5.1f}°  {organ.name:24} {organ.model}")

        # How all that a query finds is spread, without fetching it.
        print("Organs by type:", dict(registry.count().fields["type"]))

        # Likeness is the correlation of the weights: 1 the same, 0 strangers.
        first = best.items[0]
        print(f"Most like {first.name} of {first.model}:")
        for organ in registry.search(f"like:{first.digest}", limit=5):
            print(f"  {organ.likeness:6.3f}  {organ.model}")

        compare_with_relative(registry, registry.model(first.model))


def compare_with_relative(registry: LocalRegistry, model: RegisteredModel) -> None:
    """The model and the one whose weights are most like its own, organ by organ."""
    kin = [relative for relative in model.relatives if relative.model and relative.likeness is not None]
    if not kin:
        print(f"{model.name} has no relatives here")
        return
    nearest = max(kin, key=lambda relative: relative.likeness or 0.0)
    other = registry.model(nearest.model or "")
    print(f"{model.name} and {other.name} are alike by {nearest.likeness:.3f}:")
    theirs = {organ.name: organ for organ in other.organs}
    pairs = [(organ, theirs[organ.name]) for organ in model.organs if organ.name in theirs]
    print(f"  {sum(mine.digest == its.digest for mine, its in pairs)} of {len(pairs)} organs are the same bytes")
    moved = sorted(pairs, key=lambda pair: -abs((pair[0].theta or 0.0) - (pair[1].theta or 0.0)))
    for mine, its in moved[:3]:
        print(f"  θ {mine.theta:5.1f}° and {its.theta:5.1f}°  {mine.name}")


if __name__ == "__main__":
    main()
