"""Program that makes a tiny language model and serves it with llama.cpp.

`PYTHON tiny_model.py --port N`. The weights are random and fixed, so its text has no meaning; the
server, its tokens and its protocol are real. It imports nothing of this project.
"""

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import gguf  # type: ignore[import-not-found,unused-ignore]
import numpy as np
import xllamacpp  # type: ignore[import-not-found,unused-ignore]

WIDTH: Final = 64
LAYERS: Final = 2
INNER: Final = 128
CONTEXT: Final = 2048
TEMPLATE: Final = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def make(path: Path) -> None:
    """Write a model of the Llama architecture whose tokens are bytes."""
    words = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % byte for byte in range(256)]
    kinds = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + 256 * [gguf.TokenType.BYTE]
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(INNER)
    file.add_head_count(4)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(len(words))
    file.add_tokenizer_model("llama")
    file.add_token_list(words)
    file.add_token_scores([0.0] * len(words))
    file.add_token_types(kinds)
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_unk_token_id(0)
    file.add_chat_template(TEMPLATE)
    for name, shape in _shapes(len(words)).items():
        file.add_tensor(f"{name}.weight", _tensor(shape))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _shapes(words: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (words, WIDTH),
        "output": (words, WIDTH),
        "output_norm": (WIDTH,),
    }
    for layer in range(LAYERS):
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        inner = {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        norms = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        for name, shape in {**square, **inner, **norms}.items():
            shapes[f"blk.{layer}.{name}"] = shape
    return shapes


def _tensor(shape: tuple[int, ...]) -> Any:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    rng = np.random.default_rng(shape)
    return (rng.standard_normal(shape) * 0.05).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        make(path)
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.model_alias = {"tiny"}
        params.port = asked.port
        params.n_ctx = CONTEXT
        params.n_parallel = 2
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        server = xllamacpp.Server(params)
        print(server.listening_address, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
