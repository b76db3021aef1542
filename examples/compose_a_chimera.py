"""Compose a chimera from three models: print the findings, accept a warning, and write the file.

    python examples/compose_a_chimera.py [FOLDER OR URL OF A REGISTRY [FILE TO WRITE]]

Without a registry, it uses the small models of examples/zoo, in a temporary registry.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from opening import opened

BASE, FINE_TUNE, UNRELATED = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-v1.0-F16", "Zoo-B-2M-v1.0-Q8_0"


def main() -> None:
    with opened(sys.argv[1:]) as registry, tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder, "chimera.gguf")

        # Every step returns a new composition, so the first can be continued in several ways.
        first = registry.compose(BASE).graft(FINE_TUNE, type="organ", blocks="2-3")
        print("With the fine-tune:", "can be made" if first.plan().can_be_made else "cannot be made yet")

        composition = first.graft(UNRELATED, type="organ", blocks=1).named("two-donors")
        plan = composition.plan()
        print("With an unrelated model:", "can be made" if plan.can_be_made else "cannot be made yet")
        for finding in plan.findings:
            print(f"  {finding.severity:6} {finding.code:18} {finding.sentence[:80]}")
        print(plan.screen.sentence)

        # Warnings are accepted by their codes. The recipe records them.
        codes = sorted({finding.code for finding in plan.findings if finding.severity == "warn"})
        plan = composition.accept(*codes).plan()
        print(plan.recipe.accept, f"{plan.size_bytes:,} bytes")

        result = plan.assemble(path)
        print(f"Made {result.model}, sha256:{result.sha256}")

        # The chimera is a model like any other. Its recipe makes the same bytes again.
        chimera = registry.model(result.model)
        assert chimera.recipe is not None
        again = registry.compose(chimera.recipe).plan().assemble(path)
        print("The same lock and the same bytes:", (again.lock_id, again.sha256) == (result.lock_id, result.sha256))
        print(
            "Its parents:",
            ", ".join(relative.model or "" for relative in chimera.relatives if relative.direction == "parent"),
        )


if __name__ == "__main__":
    main()
