"""A capsule as a stranger may write it, and the words that a replay takes from it."""

from pathlib import Path

from cm4vllm.results.capsule import Capsule, CapsuleServer
from cm4vllm.submission.capsule.consent import Consent
from cm4vllm.submission.capsule.replay import replay_words
from recipes import recipe

ROOT = Path(__file__).resolve().parents[3]


MAIN = recipe("run-mlperf-inference-app")


HELP = {name: str(described.get("desc", "")) for name, described in MAIN.input_description.items()}


TAGS = "--tags=run-mlperf,inference,_vllm,_r6.1"


ENVIRON = {
    "AWS_SECRET_ACCESS_KEY": "aws-secret-value",
    "HF_TOKEN": "hub-token-value",
    "DATASET_PATH": "/data/cnn.json",
    "API_SERVER": "http://gpu7:8000",
    "EXTRA_ARGS": "/home/me/chat.jinja",
}


def capsule(*flags, tags=TAGS, **values):
    """A capsule as a stranger may write it, with these words in its command."""
    fields = {
        **{"made_from": "run records", "round": "v6.1", "division": "open", "submitter": "Stranger", "system": "box"},
        **{"benchmark": "llama3.1-8b", "rehearsal": True, "command": ["cm", "run", "script", tags, *flags]},
        **{"program": {}, "packages": {}, "contents": {}, "dataset": {}, "machine": {}, "scripts": [], "results": []},
        **{"model": {"name": "llama3.1-8b"}, "server": CapsuleServer()},
    }
    return Capsule(**{**fields, **values})


def words_of(*flags, given=None, accept=(), fill=(), **values):
    consent = Consent(tuple(accept), tuple(fill))
    return replay_words(capsule(*flags, **values), given or {}, ENVIRON, consent, help_of=HELP)
