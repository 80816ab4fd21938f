"""Jobs of whisper, and clips and manifests that a test makes."""

import json
import wave

from cm4vllm.assets.tiny import tone_speech
from cm4vllm.assets.tiny.tiny_dataset import EVALUATION_SEED

#: vLLM's installation included, where nothing of it is there yet.
FIRST_START_S = 1200


SAMPLES = 1633


def write_clip(path, sound, rate=tone_speech.RATE_HZ, channels=1):
    """Write 16-bit samples, those of `channels` in turn."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(sound)


def manifest(folder, *, silent):
    """Write a manifest as the reference's, with the texts of the stand-in's dataset, and return its path."""
    (folder / "dev-all-repack").mkdir(parents=True)
    entries = []
    for number, text in enumerate(tone_speech.sentences(SAMPLES, EVALUATION_SEED, evaluation=True)):
        name = f"dev-all-repack/{number}.wav"
        write_clip(folder / name, bytes(tone_speech.CLIP_S * tone_speech.RATE_HZ * 2) if silent else sound_of(text))
        entries.append(entry(name, text, tone_speech.CLIP_S))
    path = folder / "dev-all-repack.json"
    path.write_text(json.dumps(entries))
    return path


def entry(name, text, seconds=0.1):
    return {
        "transcript": text,
        "files": [{"fname": name, "speed": 1, "duration": seconds}],
        "original_duration": seconds,
    }


def sound_of(text):
    return tone_speech.clip(text).tobytes()


def job(cm, *flags, tags=",_vllm"):
    return cm.main_job("--model=whisper", "--submitter=Tester", *flags, tags=tags, timeout_s=FIRST_START_S)
