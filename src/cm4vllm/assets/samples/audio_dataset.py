"""Datasets of audio: the stand-in's clips, or files as LibriSpeech's repackaged manifest names them.

A row has the clip's path below the dataset's folder, its digest and seconds, the tokens of the prompt and the
transcript. The manifest is that of mlcommons/inference speech2text (utils/repackage_librispeech.py): a JSON list with
`transcript`, `original_duration` and `files` of each clip.
"""

import hashlib
import wave
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cm4vllm.assets.samples.published_formats import require_samples, rows_of
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import digest_of, sha256_of, writable_folder

#: The tokens of whisper's prompt: <|startoftranscript|><|en|><|transcribe|><|notimestamps|>.
PROMPT_TOKENS = 4
_RATE_HZ, _SAMPLE_BYTES = 16_000, 2
_AGAIN = "make the files with speech2text/download_dataset.sh of mlcommons/inference, or download them again"


def audio_rows(manifest: Path, samples: int | None, longest_s: float) -> list[dict[str, Any]]:
    """Return the rows of a manifest whose clips lie beside it.

    Raises DatasetError for another number of clips than `samples`, where that is given, for a clip that is missing,
    longer than `longest_s`, or no 16-bit mono WAV of 16 kHz.
    """
    return [
        _clip_row(name, manifest.parent / name, seconds, transcript)
        for name, seconds, transcript in check_clips(manifest, samples, longest_s)
    ]


def check_clips(manifest: Path, samples: int | None, longest_s: float) -> list[tuple[str, float, str]]:
    """Return path, seconds and transcript of each clip of a manifest. Raises what audio_rows raises."""
    entries = rows_of(manifest)
    require_samples(manifest, len(entries), samples)
    return [_row(manifest, number, entry, longest_s) for number, entry in enumerate(entries)]


def digest_of_clips(folder: Path, inside: str) -> str:
    """Return the digest of all clips in `folder`/`inside`: that of their lines of MD5 and name, sorted by name."""
    paths = sorted((folder / inside).glob("*.wav"), key=lambda path: path.name)
    lines = (f"{digest_of(path, 'md5').removeprefix('md5:')}  {inside}{path.name}\n" for path in paths)
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _row(manifest: Path, number: int, entry: Mapping[str, Any], longest_s: float) -> tuple[str, float, str]:
    files, transcript = entry.get("files"), entry.get("transcript")
    if not isinstance(transcript, str) or not isinstance(files, list) or not files or "fname" not in files[0]:
        raise DatasetError(
            f"{manifest}: sample {number} is not usable",
            cause="it lacks a transcript, or files with fname",
            remedy="give the manifest dev-all-repack.json, with its folder of clips beside it",
        )
    name = str(files[0]["fname"])
    path = (manifest.parent / name).resolve()
    if not path.is_relative_to(manifest.parent.resolve()) or not path.is_file():
        raise DatasetError(f"{manifest}: sample {number} has no clip {name}", cause="no such file", remedy=_AGAIN)
    if (seconds := _seconds(path)) > longest_s:
        raise DatasetError(
            f"{path} has {seconds:.2f} s",
            cause=f"a clip has {longest_s:g} s at most: a longer one would be cut into several",
            remedy=_AGAIN,
        )
    return name, seconds, transcript


def _clip_row(name: str, path: Path, seconds: float, transcript: str) -> dict[str, Any]:
    return {
        "audio": name,
        "sha256": sha256_of(path),
        "seconds": round(seconds, 4),
        "prompt_tokens": PROMPT_TOKENS,
        "output": transcript,
    }


def _seconds(path: Path) -> float:
    """Return the length of a clip. Raises DatasetError where it is no 16-bit mono WAV of 16 kHz."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, frames = file.getparams()[:4]
    except (OSError, EOFError, wave.Error) as error:
        raise DatasetError(f"{path} is not a WAV file", cause=str(error), remedy=_AGAIN) from error
    if (channels, width, rate) != (1, _SAMPLE_BYTES, _RATE_HZ):
        raise DatasetError(
            f"{path} is not a clip of the dataset",
            cause=f"it has {channels} channels of {8 * width} bits at {rate} Hz; the reference's clips are mono, "
            f"{8 * _SAMPLE_BYTES} bits, {_RATE_HZ} Hz",
            remedy=_AGAIN,
        )
    return frames / rate


def write_clips(folder: Path, texts: Sequence[str], sound: Callable[[str], bytes]) -> list[dict[str, Any]]:
    """Write a clip for each text into `folder`/clips, and return the rows; `sound` gives the 16-bit samples."""
    clips = writable_folder(folder / "clips")
    rows = []
    for number, text in enumerate(texts):
        name = f"clips/{number:04}.wav"
        with wave.open(str(clips.parent / name), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(_SAMPLE_BYTES)
            file.setframerate(_RATE_HZ)
            file.writeframes(data := sound(text))
        rows.append(_clip_row(name, folder / name, len(data) / _SAMPLE_BYTES / _RATE_HZ, text))
    return rows
