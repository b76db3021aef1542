"""What mergekit makes of small tensors, by every method: the expected values of `tests/transform/test_blend.py`.

    python -m venv /tmp/mk && /tmp/mk/bin/pip install numpy --group bench-mergekit
    /tmp/mk/bin/python -m bench.mergekit_cases      writes tests/transform/mergekit.npz

The tensors are random, those of one model near those of the others. Random masks are not mergekit's: both get the same
ones, from `mask_words`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESULTS = Path(__file__).parents[1] / "tests" / "transform" / "mergekit.npz"
WIDTH, HIDDEN, VOCABULARY = 12, 20, 9
MATRIX, VECTOR = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
SHAPES = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH), "lm_head.weight": (VOCABULARY, WIDTH), VECTOR: (WIDTH,),
    **{f"model.layers.0.self_attn.{name}_proj.weight": (WIDTH, WIDTH) for name in "qkvo"},
    "model.layers.0.mlp.gate_proj.weight": (HIDDEN, WIDTH), MATRIX: (HIDDEN, WIDTH),
    "model.layers.0.mlp.down_proj.weight": (WIDTH, HIDDEN),
    "model.layers.0.input_layernorm.weight": (WIDTH,), "model.layers.0.post_attention_layernorm.weight": (WIDTH,),
}  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": HIDDEN,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
    "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
}  # fmt: skip

Case = tuple[str, str, Mapping[str, Any], Mapping[str, Any]]
"""The method, a letter for each donor, the parameters of each donor, and the shared ones. The base is `a`."""
CASES: tuple[Case, ...] = (
    ("linear", "abc", {"weight": [0.5, 0.3, 0.4]}, {}),
    ("linear", "bc", {"weight": [0.5, 0.9]}, {"normalize": False}),
    ("slerp", "b", {}, {"t": 0.3}),
    ("slerp", "d", {}, {"t": 0.8}),
    ("nuslerp", "bc", {"weight": [0.3, 0.5]}, {}),
    ("nuslerp", "bc", {"weight": [0.3, 0.5]}, {"nuslerp_flatten": False}),
    ("nuslerp", "bc", {"weight": [0.3, 0.5]}, {"nuslerp_flatten": False, "nuslerp_row_wise": True}),
    ("task_arithmetic", "bcd", {"weight": [0.5, 0.3, -0.4]}, {"lambda": 0.7}),
    ("task_arithmetic", "bcd", {"weight": [0.5, 0.3, -0.4]}, {"normalize": True}),
    ("ties", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.6, 0.33, 0.8]}, {}),
    ("ties", "bcd", {"weight": [0.5, 0.3, -0.4], "density": [0.6, 0.33, 0.8]}, {"normalize": False, "rescale": True}),
    ("ties", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.001, 0.33, 1.0]}, {}),
    ("dare_linear", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.53, 0.33, 0.8]}, {}),
    ("dare_linear", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.53, 0.33, 0.8]}, {"rescale": False}),
    ("dare_ties", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.53, 0.33, 1.0]}, {}),
    ("della", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.53, 0.33, 0.6], "epsilon": [0.1, 0.2, 0.3]}, {}),
    ("della_linear", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.53, 0.33, 1.0], "epsilon": [0.1, 0.2, 0.3]}, {}),
    ("breadcrumbs", "bcd", {"weight": [0.5, 0.3, 0.4], "density": [0.53, 0.33, 0.6], "gamma": [0.1, 0.01, 0.3]}, {}),
    ("breadcrumbs", "bc", {"weight": [0.5, 0.3], "density": [0.001, 1.0], "gamma": [0.1, 0.3]}, {}),
    ("breadcrumbs_ties", "bcd", {"weight": [1.0, 2.0, 0.4], "density": [0.5, 0.95, 0.6], "gamma": [0.1, 0.2, 0.3]}, {}),
    ("model_stock", "bcd", {}, {}),
    ("model_stock", "bc", {}, {"filter_wise": True}),
    ("sce", "bcd", {}, {}),
    ("sce", "bcd", {}, {"select_topk": 0.4}),
    ("karcher", "bcd", {}, {}),
    ("karcher", "abc", {}, {"max_iter": 3}),
    ("arcee_fusion", "b", {}, {}),
)  # fmt: skip
WITHOUT_BASE = ("linear", "karcher")


def mask_words(size: int) -> NDArray[np.float64]:
    """Return the numbers from 0 to 1 that decide on the random mask of a tensor of `size` values."""
    return np.random.default_rng(size).random(size)


def models() -> dict[str, dict[str, NDArray[np.float32]]]:
    """Return four models: a base, and three that have a change in common and one of their own."""

    def drawn(seed: int, scale: float) -> dict[str, NDArray[np.float64]]:
        random = np.random.default_rng(seed)
        return {name: random.standard_normal(shape) * scale for name, shape in SHAPES.items()}

    base, common = drawn(0, 1.0), drawn(9, 0.1)
    made = {"a": base}
    for seed, (letter, scale) in enumerate({"b": 0.1, "c": 0.1, "d": 0.2}.items(), 1):
        made[letter] = {name: base[name] + common[name] + own for name, own in drawn(seed, scale).items()}
    return {letter: {name: one[name].astype(np.float32) for name in SHAPES} for letter, one in made.items()}


def main() -> None:
    """Run mergekit on all cases, and write the tensors before and after."""
    import torch
    import yaml
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge
    from safetensors.torch import load_file, save_file

    def bernoulli(chances: Any, *_: Any, **__: Any) -> Any:
        words = torch.tensor(mask_words(chances.numel()).reshape(chances.shape))
        return (words < chances.double()).to(chances.dtype)

    torch.bernoulli = bernoulli
    kept: dict[str, NDArray[np.float32]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for letter, tensors in models().items():
            place = Path(folder, letter)
            place.mkdir()
            save_file({name: torch.tensor(one) for name, one in tensors.items()}, str(place / "model.safetensors"))
            (place / "config.json").write_text(json.dumps(CONFIG))
            kept |= {f"{letter}/{name}": tensors[name] for name in (MATRIX, VECTOR)}
        for number, (method, letters, each, shared) in enumerate(CASES):
            listed = [
                {"model": f"{folder}/{letter}", "parameters": {key: values[at] for key, values in each.items()}}
                for at, letter in enumerate(letters)
            ]
            configuration: dict[str, Any] = {"models": listed, "merge_method": method, "parameters": dict(shared)}
            configuration |= {"dtype": "float32"}
            configuration |= {} if method in WITHOUT_BASE else {"base_model": f"{folder}/a"}
            out = f"{folder}/out{number}"
            text = yaml.safe_load(yaml.safe_dump(configuration))
            run_merge(MergeConfiguration.model_validate(text), out, MergeOptions(copy_tokenizer=False))
            for file in Path(out).glob("*.safetensors"):
                made = load_file(str(file))
                kept |= {f"{number}/{name}": made[name].numpy() for name in (MATRIX, VECTOR) if name in made}
    np.savez_compressed(RESULTS, **kept)  # type: ignore[arg-type]
    print(f"{RESULTS}: {RESULTS.stat().st_size:,} bytes, {len(CASES)} cases")


if __name__ == "__main__":
    main()
