"""Measure layers of a real model that are repeated and dropped, and what versions with another header cost.

    python -m bench.real_family FOLDER                        first: train the family, or use any folder with texts
    python -m bench.surgery layers FOLDER                     perplexities of the base in F16 with other layers
    python -m bench.surgery headers FILE.gguf...              set a new chat template in each, and count the bytes
    python -m bench.surgery hybrid FOLDER                     drop blocks of a generated hybrid, and run what remains

`layers` composes each arrangement in a registry of its own, and takes a quick look at it, of six windows of each of the
texts code, docs and prose of the family. It checks that no organ is stored. `headers` ingests the files, sets a chat
template in each, and counts the stored bytes of the blobs and of the database before and after it, and the bytes that a
push of the new versions sends to a server that has the files. `hybrid` writes a small Qwen 3.5 with random weights,
eight blocks of which every fourth has attention, drops a period, and then a single block.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from sqlalchemy import func, select

from bench.load import served
from organs.ingest.service import ingest_model
from organs.ingest.sources import find_sources
from organs.registry.catalog.tables import Blob, OrganRow
from organs.registry.gguf import (
    KeyValue,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    encode_header,
    padded,
    read_header,
)
from organs.registry.gguf.tokenizer import TOKENS_KEY
from organs.registry.gguf.types import ALIGNMENT_DEFAULT
from organs.registry.input_files import FileSource
from organs.registry.local import LocalRegistry
from organs.registry.validation.decoder import Decoder, ModelRefused, opened
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.quick import LookBudget, quick_look
from organs.registry.validation.run import CatalogScores, registered_candidate

SECONDS, WINDOWS = 1800.0, 6
ARRANGEMENTS = {
    "blocks 7-10 a second time, after block 10": "0-10,7-29",
    "blocks 12-13 a second time": "0-13,12-29",
    "blocks 20-23 a second time": "0-23,20-29",
    "blocks 10-11 dropped": "0-9,12-29",
    "blocks 15-16 dropped": "0-14,17-29",
    "blocks 20-21 dropped": "0-19,22-29",
    "blocks 23-24 dropped": "0-22,25-29",
    "blocks 12 and 13 exchanged": "0-11,13,12,14-29",
}
ZOO = Path(__file__).parent.parent / "examples" / "zoo" / "Zoo-A-2M-v1.0-F16.gguf"
BLOCKS, INTERVAL, WIDTH, HEAD = 8, 4, 64, 16
TEMPLATE = (
    "{{ bos_token }}{%- for message in messages -%}\n"
    "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<end_of_turn>\n{% endfor -%}\n"
    "{%- if add_generation_prompt -%}<start_of_turn>model\n{% endif -%}\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("layers", "headers", "hybrid"))
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.paths[0].parent) as folder:
        if options.what == "layers":
            measure_layers(options.paths[0], Path(folder))
        elif options.what == "headers":
            measure_headers(options.paths, Path(folder))
        else:
            try_hybrid(Path(folder))


def ingest(registry: LocalRegistry, paths: list[Path]) -> list[str]:
    """Register files; return the names of their models."""
    names = []
    for source in find_sources([str(path) for path in paths]):
        ingest_model(registry, source)
        names.append(str(source.name))
    return names


def stored(registry: LocalRegistry) -> tuple[int, int, int]:
    """Return the number of organs, the stored bytes of all blobs, and the bytes of the database."""
    with registry.catalog.reading() as session:
        organs = session.scalar(select(func.count()).select_from(OrganRow)) or 0
        blobs = session.scalar(select(func.sum(Blob.stored_bytes))) or 0
        size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return organs, blobs, session.connection().exec_driver_sql(size).scalar_one()


def measure_layers(family: Path, folder: Path) -> None:
    """Print a row for each arrangement."""
    from bench.real_models import BASE, divided  # needs torch

    looks, _ = divided(family / "texts")
    with LocalRegistry.open(folder / "home") as registry:
        ingest(registry, [family / f"{BASE.partition('/')[2]}.gguf"])
        organs = stored(registry)[0]
        print(
            "| blocks | " + " | ".join(text.name for text in looks) + " | blobs |\n" + "|---" * (len(looks) + 2) + "|"
        )
        for name, blocks in ARRANGEMENTS.items():
            before = stored(registry)[1]
            composition = registry.compose(BASE)
            for run in blocks.split(","):
                composition = composition.layers(run)
            made = composition.plan().accepting_all().register()
            assert stored(registry)[0] == organs, "an organ was stored"
            chimera, base = (
                registered_candidate(registry.catalog, registry.blobs, model) for model in (made.model, BASE)
            )
            scores = CatalogScores(registry.catalog)
            look = quick_look(chimera, base, looks, LlamaCpp(), scores, LookBudget(SECONDS, WINDOWS))
            cells = [
                f"{text.base_perplexity or 0.0:.1f} → {text.perplexity or 0.0:.1f}, {text.amount}"
                for text in look.texts
            ]
            print(f"| {name} | {' | '.join(cells)} | {stored(registry)[1] - before:,} B |", flush=True)


@contextmanager
def counted(port: int) -> Iterator[tuple[int, list[int]]]:
    """Pass connections on to a server; yield the port to connect to, and the count of bytes that were sent to it."""
    sent = [0]

    def passed(source: socket.socket, target: socket.socket, count: bool) -> None:
        while data := source.recv(65536):
            sent[0] += len(data) if count else 0
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", port))
            for arguments in ((client, server, True), (server, client, False)):
                threading.Thread(target=passed, args=arguments, daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], sent


def measure_headers(files: list[Path], folder: Path) -> None:
    """Print what a new chat template in each file costs here, and what a push of the new versions sends."""
    home = folder / "home"
    with LocalRegistry.open(home) as registry:
        names = ingest(registry, files)
        _, blobs, database = stored(registry)
        start = time.perf_counter()
        made = [
            registry.compose(name).metadata("tokenizer.chat_template", TEMPLATE).named(f"local/chat-{number}")
            for number, name in enumerate(names)
        ]
        models = [composition.plan().register().model for composition in made]
        seconds = time.perf_counter() - start
        _, blobs_after, database_after = stored(registry)
    print(
        f"{len(names)} versions in {seconds:.1f} s: {blobs_after - blobs:,} B of blobs; "
        f"the database grows by {database_after - database:,} B, most of it rows of the catalog"
    )
    with served(folder / "server") as server, counted(server.port) as (port, sent):
        for what in (*map(str, files), *models):
            before = sent[0]
            address = f"http://127.0.0.1:{port if what in models else server.port}"
            command = [sys.executable, "-m", "organs.cli", "push", what]
            subprocess.run(
                command,
                check=True,
                env={**os.environ, "ORGAN_HOME": str(home), "ORGAN_REGISTRY": address},
                stdout=subprocess.DEVNULL,
            )
            if what in models:
                print(f"push of {what}: {sent[0] - before:,} B sent")


def write_hybrid(path: Path) -> None:
    """Write a small Qwen 3.5 with random weights and the vocabulary of the zoo."""
    random = np.random.default_rng(0)
    with FileSource(ZOO) as source:
        zoo = read_header(source)
        vocabulary = [carry_over(source, field) for field in zoo.fields if field.key.startswith("tokenizer.")]
        tokens = zoo.field(TOKENS_KEY)
    assert tokens is not None
    counts = {
        "block_count": BLOCKS,
        "context_length": 256,
        "embedding_length": WIDTH,
        "feed_forward_length": 2 * WIDTH,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "rope.dimension_count": HEAD // 4,
        "full_attention_interval": INTERVAL,
        "ssm.conv_kernel": 4,
        "ssm.state_size": HEAD,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 4,
        "ssm.inner_size": 4 * HEAD,
    }
    entries = [
        KeyValue("general.architecture", ValueType.STRING, "qwen35"),
        KeyValue("general.name", ValueType.STRING, "Hybrid"),
        *(KeyValue(f"qwen35.{key}", ValueType.UINT32, value) for key, value in counts.items()),
        KeyValue("qwen35.rope.dimension_sections", ValueType.ARRAY, [1, 1, 0, 0], element_type=ValueType.INT32),
        KeyValue("qwen35.rope.freq_base", ValueType.FLOAT32, 10000.0),
        KeyValue("qwen35.attention.layer_norm_rms_epsilon", ValueType.FLOAT32, 1e-6),
    ]
    attention = {
        "attn_q.weight": (WIDTH, 8 * HEAD),
        "attn_k.weight": (WIDTH, 2 * HEAD),
        "attn_v.weight": (WIDTH, 2 * HEAD),
        "attn_output.weight": (4 * HEAD, WIDTH),
        "attn_q_norm.weight": (HEAD,),
        "attn_k_norm.weight": (HEAD,),
    }
    recurrent = {
        "attn_qkv.weight": (WIDTH, 8 * HEAD),
        "attn_gate.weight": (WIDTH, 4 * HEAD),
        "ssm_dt.bias": (4,),
        "ssm_conv1d.weight": (4, 8 * HEAD),
        "ssm_a": (4,),
        "ssm_beta.weight": (WIDTH, 4),
        "ssm_alpha.weight": (WIDTH, 4),
        "ssm_norm.weight": (HEAD,),
        "ssm_out.weight": (4 * HEAD, WIDTH),
    }
    common = {
        "attn_norm.weight": (WIDTH,),
        "post_attention_norm.weight": (WIDTH,),
        "ffn_gate.weight": (WIDTH, 2 * WIDTH),
        "ffn_up.weight": (WIDTH, 2 * WIDTH),
        "ffn_down.weight": (2 * WIDTH, WIDTH),
    }
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (WIDTH, tokens.count), "output_norm.weight": (WIDTH,)}
    for block in range(BLOCKS):
        own = attention if block % INTERVAL == INTERVAL - 1 else recurrent
        shapes |= {f"blk.{block}.{name}": shape for name, shape in (common | own).items()}
    specs = [TensorSpec(name, shape, dtype_by_name("F32")) for name, shape in shapes.items()]
    with path.open("wb") as file:
        file.write(encode_header([*entries, *vocabulary], specs))
        for spec in specs:
            values = random.standard_normal(spec.elements) * 0.05 + (1.0 if spec.name.endswith("norm.weight") else 0.0)
            data = values.astype("<f4").tobytes()
            file.write(data.ljust(padded(len(data), ALIGNMENT_DEFAULT), b"\0"))


def runs(path: Path) -> str:
    """Return what llama.cpp says to a file: the largest logit of a window, or its refusal."""
    try:
        with opened(str(path)) as model:
            tokens = [*model.first_tokens(), *model.tokens("The quick brown fox jumps over the lazy dog.")]
            with closing(Decoder(model, 64)) as decoder:
                logits = np.stack(list(decoder.logits(tokens)))
        return f"runs, {len(tokens)} tokens, the largest logit {logits.max():.4f}"
    except ModelRefused as error:
        return f"refused by llama.cpp: {error}"


def try_hybrid(folder: Path) -> None:
    """Drop a period of a hybrid, and a block, in the registry; and the block without it."""
    path = folder / "hybrid.gguf"
    write_hybrid(path)
    print(f"the hybrid of {BLOCKS} blocks: {runs(path)}")
    with LocalRegistry.open(folder / "home") as registry:
        (name,) = ingest(registry, [path])
        for what, blocks in (
            ("one period dropped", "0-3"),
            ("one period repeated", "0-7,4-7"),
            ("one block dropped", "0-1,3-7"),
        ):
            plan = registry.compose(name).layers(blocks).plan().accepting_all()
            if plan.can_be_made:
                plan.assemble(folder / "made.gguf")
                print(f"{what}: {runs(folder / 'made.gguf')}")
            else:
                print(f"{what}: refused: {plan.planned.refusals[0].sentence}")


if __name__ == "__main__":
    main()
