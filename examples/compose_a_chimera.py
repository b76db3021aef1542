"""Compose a chimera from three models: what is found before anything is made, what must be accepted, the file.

    python examples/compose_a_chimera.py [FOLDER OR URL OF A REGISTRY [FILE TO WRITE]]

Without one it works on the little models of examples/zoo, in a temporary registry.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from opening import opened

BASE, FINE_TUNE, STRANGER = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-B-2M-v1.0-Q8_0"


def main() -> None:
    with opened(sys.argv[1:]) as registry, tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder, "chimera.gguf")

        # Every step gives a new composition, so that a beginning can be gone on with in several ways.
        begun = registry.compose(BASE).graft(FINE_TUNE, type="organ", blocks="2-3")
        print("With the fine-tune:", "can be made" if begun.plan().can_be_made else "cannot be made yet")

        composition = begun.graft(STRANGER, type="organ", blocks=1).named("two-donors")
        plan = composition.plan()
        print("With the stranger:", "can be made" if plan.can_be_made else "cannot be made yet")
        for finding in plan.findings:
            print(f"  {finding.severity:6} {finding.code:18} {finding.sentence[:80]}")
        print(plan.prediction.sentence)

        # A warning is accepted by its code, which then stands in the recipe.
        warned = sorted({finding.code for finding in plan.findings if finding.severity == "warn"})
        plan = composition.accept(*warned).plan()
        print(plan.recipe.accept, f"{plan.size_bytes:,} bytes")

        made = plan.assemble(path)
        print(f"Made {made.model}, sha256:{made.sha256}")

        # It is a model like any other now. Its recipe makes the same bytes again.
        chimera = registry.model(made.model)
        assert chimera.recipe is not None
        again = registry.compose(chimera.recipe).plan().assemble(path)
        print("The same lock and the same bytes:", (again.lock_id, again.sha256) == (made.lock_id, made.sha256))
        print(
            "Its parents:",
            ", ".join(relative.model or "" for relative in chimera.relatives if relative.direction == "parent"),
        )


if __name__ == "__main__":
    main()
