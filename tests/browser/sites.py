"""The catalogs under test: the zoo, what contributors should not send, and an empty one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from msgspec import convert

from organs.registry.entities.validation import VerdictReport
from organs.registry.local import LocalRegistry
from tests.evolutions import add_evolution
from tests.gains import add_gains
from tests.gguf_files import file_bytes, text, unsigned
from tests.small_models import Tensors, block_metadata, block_tensors, ingest_file, weight_tensor
from tests.web.conftest import FORMULA, HOSTILE, HOSTILE_LINK
from tests.web.live_server import ROOT, LiveServer, running_server
from tests.web.test_verdicts import report

ZOO = ROOT / "examples" / "zoo"
BASE = "local/Zoo-A-2M-v1.0-F16"
TUNED = "local/Zoo-A-2M-Code-v1.0-F16"
ADAPTER = "local/Zoo-A-2M-Code-LoRA-v1.0-F32"
WIDE = "local/wide"
ODD = "local/odd"
BLOCKS, NARROW = 40, 16
ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_gate", "attn_q_a", "attn_q_b", "attn_kv_b")
RECURRENT = ("ssm_in", "ssm_x", "ssm_dt", "ssm_out", "ssm_conv1d", "time_mix_receptance", "time_mix_output")
COMPRESSED = ("attn_kv_a_mqa", "attn_k_b", "attn_v_b", "indexer.proj", "indexer.attn_k", "indexer.attn_q_b")
FORWARD = ("ffn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
SHARED = ("ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp")
NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm")
LONG_TITLE = "DeepThought Experimental Mixture of Experts 671B A37B Instruct 0324 Preview Extended Context"


@dataclass(frozen=True, slots=True)
class Site:
    """A catalog behind a running server."""

    live: LiveServer
    organ: str = ""
    """The digest of an organ of it that has relatives; stands for `{organ}` in addresses."""
    lock: str = ""
    """The digest of a chimera's lock; stands for `{lock}`."""

    @property
    def address(self) -> str:
        return self.live.address

    def at(self, path: str) -> str:
        """The whole address of a page."""
        return f"{self.address}{path.format(organ=self.organ, lock=self.lock)}"


@contextmanager
def serving_zoo(folder: Path) -> Iterator[Site]:
    """The shipped models, two chimeras of them, one with a verdict and one with a quick look, and two evolutions."""
    with LocalRegistry.open(folder / "zoo") as registry:
        for path in sorted(ZOO.glob("*.gguf")):
            ingest_file(registry, path)
        coder = registry.compose(BASE).graft(TUNED, type="organ").plan().register()
        add_gains(registry, coder.model, {"python": 5.7, "narrative": -2.0})
        made = registry.compose(BASE).graft(TUNED, type="organ").purify("fractal", slot="ffn_up", blocks=3)
        lock = made.plan().register().lock_id
        registry.quick_look(f"sha256:{lock}")
        found = convert(report(seconds=12.0), VerdictReport)
        add_evolution(registry, BASE, [TUNED, ADAPTER], winner=coder.model, verdict=found)
        add_evolution(registry, BASE, [TUNED], state="running")
    with running_server(folder / "zoo", folder / "zoo.log") as live:
        query = quote(f"model:{BASE} slot:ffn_down block:1")
        organ = json.loads(live.get(f"/api/v1/organs?limit=1&q={query}"))["items"][0]["digest"]
        yield Site(live, organ, lock)


@contextmanager
def serving_odd(folder: Path) -> Iterator[Site]:
    """A model whose every word is an attack, and one that is wider and longer than any screen."""
    attack, wide = folder / '"><img src=x onerror=alert(1)>.gguf', folder / f"{LONG_TITLE.replace(' ', '-')}.gguf"
    attack.write_bytes(_attack())
    wide.write_bytes(_wide())
    with LocalRegistry.open(folder / "odd") as registry:
        ingest_file(registry, attack, ODD)
        ingest_file(registry, wide, WIDE)
    with running_server(folder / "odd", folder / "odd.log") as live:
        yield Site(live)


@contextmanager
def serving_nothing(folder: Path) -> Iterator[Site]:
    """A registry that was made just now."""
    LocalRegistry.open(folder / "empty").close()
    with running_server(folder / "empty", folder / "empty.log") as live:
        yield Site(live)


def _attack() -> bytes:
    names = ('"><script>alert(1)</script>', "blk.1.'onmouseover='alert(1)", f"blk.0.{FORMULA}"[:60])
    entries = {
        "general.architecture": HOSTILE,
        "general.name": HOSTILE * 3,
        "general.description": HOSTILE + HOSTILE_LINK + "w" * 3000,
        "general.license": f"{FORMULA}<img src=x onerror=alert(1)>",
        "general.url": HOSTILE_LINK,
        "general.size_label": "' onfocus=alert(1) autofocus x='",
        f"acme.{HOSTILE}": HOSTILE,
    }
    metadata = [text(key, value) for key, value in entries.items()]
    return file_bytes(metadata, [*block_tensors(2), *(weight_tensor(name, (64, 64)) for name in names)])


def _wide() -> bytes:
    tensors: Tensors = [weight_tensor("token_embd.weight", (NARROW, 64))]
    for block in range(BLOCKS):
        slots = ATTENTION + COMPRESSED + RECURRENT + FORWARD + SHARED
        tensors += [weight_tensor(f"blk.{block}.{slot}.weight", (NARROW, NARROW)) for slot in slots]
        tensors += [weight_tensor(f"blk.{block}.{slot}.weight", (NARROW,), dtype="F32") for slot in NORMS]
    entries = [*block_metadata(LONG_TITLE, BLOCKS), unsigned("llama.context_length", 1 << 20)]
    return file_bytes(entries, [*tensors, weight_tensor("output_norm.weight", (NARROW,), dtype="F32")])
