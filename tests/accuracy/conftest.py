"""A model folder with a tokenizer of words, and an accuracy run whose answers are known."""

import argparse
import ast
import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from nltk.tokenize.punkt import PunktSentenceTokenizer
from rouge_score.rouge_scorer import RougeScorer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from builders import server_record
from cm4vllm import REHEARSAL_NOTICE
from cm4vllm.accuracy.rouge import TYPES
from cm4vllm.common.files import sha256_of
from cm4vllm.common.records import read_record, write_record
from cm4vllm.records.assets import DatasetRecord, ModelRecord
from cm4vllm.records.client import ClientRecord
from cm4vllm.records.logs.run_logs import ACCURACY_LOG
from cm4vllm.records.run import RunRecord, RunSettings
from cm4vllm.rules import Mode, Scenario, terms

TEXT = "the ship from Riga Oslo landed sailed late ten tons of salt silk timber on Monday Friday . , ! ? n't"


END = 99


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A folder with tokenizer.json: one token a word, an end token that is special."""
    vocabulary = {word: i + 1 for i, word in enumerate(TEXT.split())} | {"</s>": END}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    folder = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@dataclass
class AccuracyRun:
    """The folder of an accuracy run; `answers` holds (index, text) in the order of the log."""

    folder: Path
    model: Path

    def write(
        self,
        outputs,
        answers,
        *,
        dtype=np.int32,
        sentences="punkt-untrained",
        samples=None,
        columns=(),
        benchmark="llama3.1-8b",
        data=None,
        **dataset,
    ):
        """Write the dataset of `outputs`, the log of `answers` and run.json, as a LoadGen run leaves them.

        `columns` are further columns of each row; `data` gives the logged bytes of an answer, its tokens without.
        """
        path = self.folder / "dataset.json"
        more = columns or [{}] * len(outputs)
        rows = [
            {"input": "x", "tok_input": [1], "output": output, **others}
            for output, others in zip(outputs, more, strict=True)
        ]
        path.write_text(json.dumps(rows))
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        data = data or (lambda text: np.array([*tokenizer.encode(text).ids, END], dtype).tobytes())
        entries = [
            {"seq_id": number, "qsl_idx": index, "token_count": 0, "data": data(text).hex().upper()}
            for number, (index, text) in enumerate(answers)
        ]
        log = self.folder / ACCURACY_LOG
        log.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")
        settings = RunSettings(
            rehearsal=True,
            terms=terms("v6.1", benchmark, Scenario.OFFLINE, Mode.ACCURACY),
            user_conf="",
            samples=samples or len(outputs),
            **{"max_tokens": 128, "min_tokens": 2, "max_in_flight": 8, "target_qps": 1, "target_qps_source": ""},
            model=ModelRecord(name="words", path=str(self.model), source="", sha256=""),
            dataset=DatasetRecord(
                name="d",
                path=str(path),
                source="",
                sha256=sha256_of(path),
                samples=len(outputs),
                max_input_tokens=1,
                sentences=sentences,
                **dataset,
            ),
            server=server_record(owned=False),
        )
        write_record(
            self.folder / "run.json",
            RunRecord(
                notice=REHEARSAL_NOTICE,
                settings=settings,
                **{"settings_sha256": "", "started_at": "", "ended_at": "", "duration_s": 1},
                **{"loadgen_version": "", "versions": {}},
                client=ClientRecord(requests=1, completed=1, failed=0, retries=0, prompt_tokens=0, completion_tokens=0),
                files={ACCURACY_LOG: sha256_of(log)},
            ),
        )
        return self.folder

    def change(self, **settings):
        """Change settings in run.json."""
        path = self.folder / "run.json"
        record = read_record(path, RunRecord)
        changed = msgspec.structs.replace(record.settings, **settings)
        write_record(path, msgspec.structs.replace(record, settings=changed))


@pytest.fixture
def accuracy_run(tmp_path, model_folder):
    return AccuracyRun(tmp_path, model_folder)


def _rouge(predictions, references, use_stemmer, use_aggregator):
    """Return what the `rouge` metric of the package evaluate returns, which wraps rouge-score."""
    scorer = RougeScorer(list(TYPES), use_stemmer=use_stemmer)
    scores = [scorer.score(wanted, given) for wanted, given in zip(references, predictions, strict=True)]
    return {type_: [score[type_].fmeasure for score in scores] for type_ in TYPES}


@pytest.fixture(scope="session")
def printed_by(official_file):
    """The numbers that the main program of a reference script prints, with `names` in the place of what it imports."""

    def printed(commit, script, arguments, **names):
        tree = ast.parse(official_file(commit, script))
        tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        names = {
            "np": np,
            "json": json,
            "argparse": argparse,
            "nltk": SimpleNamespace(download=lambda name: None, sent_tokenize=PunktSentenceTokenizer().tokenize),
            "evaluate": SimpleNamespace(load=lambda name: SimpleNamespace(compute=_rouge)),
            **names,
        }
        exec(compile(tree, script, "exec"), names)
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            patch.setattr(sys, "argv", [script, *arguments])
            names["main"]()
        return eval(out.getvalue().strip().splitlines()[-1], {"np": np})  # with numpy's own numbers

    return printed
