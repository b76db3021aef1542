"""Make a chimera by query: graft the most similar organs, merge an adapter, and purify some organs.

    python examples/chimera_by_query.py [FOLDER OR URL OF A REGISTRY [FILE TO WRITE]]

Without a registry, it uses the small models of examples/zoo, in a temporary registry.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from opening import opened

BASE, ADAPTER = "Zoo-A-2M-v1.0-F16", "Zoo-A-2M-Code-LoRA-v1.0-F32"


def main() -> None:
    with opened(sys.argv[1:]) as registry, tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder, "chimera.gguf")
        composition = (
            registry.compose(BASE)
            # In each block, the first kin of the base with all feed-forward organs among the results is the donor.
            # A likeness above 0.999 is that of a quantisation of the base.
            .graft(where="type:organ likeness:0.5-0.999", sort="-likeness", blocks="0-1")
            .adapter(ADAPTER, 0.5)
            .purify("spectral", slot="attn_v", blocks="2-3", keep=0.99)
            .named("by-query")
        )
        print(composition.yaml())
        plan = composition.plan()
        donors = {part.model for part in plan.parts if "grafted" in part.acts}
        print("Donors:", ", ".join(sorted(donors)))
        codes = {finding.code for finding in plan.findings if finding.severity == "warn"}
        print("Warnings:", ", ".join(sorted(codes)) or "none")

        result = composition.accept(*codes).plan().assemble(path)
        print(f"Made {result.model}, {result.size_bytes:,} bytes, lock {result.lock_id}")

        # θ of the changed organs of blocks 0 and 2, before and after.
        base, chimera = registry.model(BASE), registry.model(result.model)
        acts = {part.name: part.acts for part in plan.parts}
        for organ in chimera.organs:
            old = base.organ(organ.name)
            if organ.block in (0, 2) and old.theta is not None and organ.theta is not None and acts[organ.name]:
                print(f"  θ {old.theta:5.1f}° -> {organ.theta:5.1f}°  {organ.name:24} {', '.join(acts[organ.name])}")


if __name__ == "__main__":
    main()
