"""Run when Python starts: torchvision's operators are declared before its first import, which is before vLLM's plugins.

Transformers imports torchvision when vLLM itself is imported.
"""

import sys
from collections.abc import Sequence


class _BeforeTorchvision:
    """Declares the operators when torchvision is looked up for the first time; finds no module itself."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import cm4vllm_vision  # type: ignore[import-not-found]

            cm4vllm_vision.register()


sys.meta_path.insert(0, _BeforeTorchvision())
