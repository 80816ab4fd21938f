"""A recording of NVML (hardware/gpus/gpu.py), replayed where there is no GPU."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


class Replay:
    """Answers as the recording does; what it does not hold is an error of the driver: function not found."""

    def __init__(self, recording: Mapping[str, Any]) -> None:
        import pynvml

        self._nvml = pynvml
        self._answers: Mapping[str, Any] = recording["answers"]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(self._nvml, name)

        def call(*args: Any) -> Any:
            answer = self._answers.get(
                f"{name}({', '.join(str(arg) for arg in args)})", {"error": self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND}
            )
            if isinstance(answer, dict) and "error" in answer:
                raise self._nvml.NVMLError(answer["error"])
            if isinstance(answer, dict) and "handle" in answer:
                return answer["handle"]
            return _structured(answer)

        return call


def _structured(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _structured(item) for key, item in value.items()})
    return [_structured(item) for item in value] if isinstance(value, list) else value
