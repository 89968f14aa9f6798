"""The folders for a replica's compile products, and the variables that name them for its engine.

Tests: tests/integration/test_resident_starts.py.
"""

from pathlib import Path
from typing import Final

# Variables of engines that name the folders of their compile products.
CACHES: Final = {
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_DG_CACHE_DIR": "deep_gemm",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}
# For other engines: the folder itself.
ARTEFACTS: Final = "MUSTER_MODEL_ARTEFACTS"


def made_in(cache: Path) -> dict[str, str]:
    """Make the folders of all engines in a replica's folder; return the variables. Raises OSError.

    Folders that are there stay.
    """
    for name in dict.fromkeys(CACHES.values()):
        (cache / name).mkdir(mode=0o700, exist_ok=True)
    variables = {variable: str(cache / name) for variable, name in CACHES.items()}
    return {**variables, ARTEFACTS: str(cache)}
