"""Sources of a job's model and datasets, and the model's quantisation, as variations of the recipes for these.

The stand-ins, a tiny model and its own dataset, are used where nothing else was asked for, and only together: a real
model would be measured on prompts that the benchmark does not have, the tiny model on prompts that it cannot answer.
Random weights answer any prompt alike: they have the stand-in's dataset, which needs no network, unless another is
asked for. SmolLM2 of its package has the articles that come with cm4vllm.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from cm4vllm.assets.model_sizes import gate_words
from cm4vllm.assets.packaged import articles, smollm2
from cm4vllm.assets.quantization import KV_FP8, QuantizationSettings, require_scheme, schemes
from cm4vllm.assets.tiny.stand_in_datasets import CALIBRATION_SAMPLES
from cm4vllm.assets.tiny.stand_ins import STAND_INS, stand_in_named
from cm4vllm.campaign.planning.steps import Brings
from cm4vllm.common import input_types
from cm4vllm.common.errors import UsageError, nearest
from cm4vllm.common.files import typed_path
from cm4vllm.common.settings import Key, Settings
from cm4vllm.records.weights.checkpoint import GGUF
from cm4vllm.rules import catalogue, published_bytes

#: The beginnings of names that are paths.
_PATHS = ("/", "./", "../", "~")
_TINY, _BENCHMARK, _DUMMY, _ARTICLES = "_tiny", "_mlcommons", "_dummy", "_articles"
_SMOLLM2 = f"_{smollm2.VARIATION}"


class AssetInputs(Settings, frozen=True, kw_only=True):
    """The inputs that say where model and datasets come from.

    `model` is the benchmark, `model_source` the variation that was asked for. With `api_server`, `vllm_model_name` is
    the name that the given server has for its model. `dataset` says which where the user does.
    """

    model: input_types.Benchmark = "llama3.1-8b"
    model_source: input_types.ModelSource = ""
    vllm_model_name: input_types.VllmModelName = ""
    api_server: input_types.ApiServer = ""
    dataset: Annotated[Literal["", "benchmark", "tiny", "articles"], Key("CM_DATASET_SOURCE")] = ""
    dataset_path: input_types.DatasetFile = ""
    calibration_path: Annotated[str, Key("CM_CALIBRATION_DATASET_FILE")] = ""
    performance_dataset_path: Annotated[str, Key("CM_PERFORMANCE_DATASET_FILE")] = ""
    compliance_dataset_path: Annotated[str, Key("CM_COMPLIANCE_DATASET_FILE")] = ""
    dummy_layers: input_types.DummyLayers = None
    device: input_types.Device = ""
    rehearse: input_types.Rehearse = ""

    @property
    def served(self) -> bool:
        """Return True if a server that runs already is measured."""
        return bool(self.api_server)

    @property
    def source(self) -> str:
        """The variation that gives the model, empty where none was asked for: a simulated server has no weights."""
        return _DUMMY if self.rehearse else self.model_source


@dataclass(frozen=True)
class Sources:
    """The variations that give model, dataset and calibration set.

    `performance` gives the dataset that performance runs have of their own, `compliance` that of a compliance test,
    each empty where there is none. `named` says that the user named the model, or asked for the stand-in by its name.
    """

    benchmark: str
    model: str
    dataset: str
    calibration: str
    named: bool
    performance: str = ""
    compliance: str = ""

    @property
    def dummy(self) -> bool:
        """Return True if the model has random weights."""
        return self.model.startswith(_DUMMY)

    @property
    def needs_sentence_model(self) -> bool:
        """Return True if nltk's trained model splits the dataset's answers; answers made here need none."""
        return self.dataset not in (_TINY, _ARTICLES)

    @property
    def has_articles(self) -> bool:
        """Return True if the dataset is that of the articles."""
        return self.dataset == _ARTICLES

    @property
    def model_notes(self) -> tuple[str, ...]:
        """Steps that the user has to take before the model can be downloaded."""
        words = gate_words(self.kind, self.location)
        return (words,) if words else ()

    def brings(self, kind: Literal["dataset", "performance", "compliance", "calibration"]) -> tuple[Brings, ...]:
        """Return the downloads for a dataset that get,dataset itself does not state, or that it is made."""
        known = catalogue().benchmark(self.benchmark)
        variation, name = {
            "dataset": (self.dataset, known.dataset),
            "performance": (self.performance, known.performance_dataset),
            "compliance": (self.compliance, known.compliance_dataset),
            "calibration": (self.calibration, known.calibration),
        }[kind]
        if variation == _TINY:
            stand_in = STAND_INS[known.stand_in]
            samples = CALIBRATION_SAMPLES if kind == "calibration" else catalogue().dataset(name).samples or 0
            return (
                Brings(
                    how="make",
                    what=f"the dataset of {stand_in.name}",
                    disk_bytes=samples * stand_in.sample_bytes,
                    source=f"{stand_in.sample_bytes:,} bytes a sample, measured",
                ),
            )
        if variation == _ARTICLES:
            title = f"the dataset of {articles.SAMPLES} articles"
            return (Brings(how="make", what=title, disk_bytes=articles.DISK_BYTES, source="measured"),)
        dataset = catalogue().dataset(name) if variation == _BENCHMARK else None
        if dataset is None or not dataset.mlcommons:
            return ()
        return (
            Brings(
                how="download",
                what=f"the dataset {name}, {dataset.file} from MLCommons",
                disk_bytes=published_bytes(dataset.size),
                source="all files, as published",
            ),
        )

    @property
    def kind(self) -> str:
        """The kind of source of the model: hf, catalogue, mlcommons, path, dummy, served, or a stand-in."""
        return self.model.removeprefix("_").partition(".")[0]

    @property
    def location(self) -> str:
        """The model's folder, its id on the hub, or its name in the catalogue."""
        return self.model.partition(".")[2]


def sources(inputs: AssetInputs) -> Sources:
    """Decide where model and datasets come from. Raises UsageError for what contradicts itself."""
    known = catalogue().benchmark(inputs.model)
    tiny = f"_{known.stand_in}"
    asked, model = _model(inputs, tiny)
    stand_in = model == tiny
    given = {
        "dataset_path": inputs.dataset_path,
        "calibration_path": inputs.calibration_path,
        "performance_dataset_path": inputs.performance_dataset_path,
        "compliance_dataset_path": inputs.compliance_dataset_path,
    }
    apart = {"performance_dataset": known.performance_dataset, "compliance_dataset": known.compliance_dataset}
    _require_use(given, apart, benchmark=inputs.model, model_is_missing=stand_in and not asked)
    if inputs.calibration_path and not known.calibration:
        raise UsageError(
            f"--calibration_path is given, but {inputs.model} has no calibration set",
            cause="no set is published for it, and no scheme uses samples of its kind",
            remedy="leave it out",
        )
    tiny_data = inputs.dataset == "tiny" or ((stand_in or model.startswith(_DUMMY)) and inputs.dataset != "benchmark")
    own = _TINY if tiny_data else _BENCHMARK
    if inputs.dataset == "articles" or (model == _SMOLLM2 and not inputs.dataset):
        own = _ARTICLES
    variations = {flag: f"_path.{path}" if path else own for flag, path in given.items()}
    return Sources(
        benchmark=inputs.model,
        model=model,
        named=bool(asked or inputs.vllm_model_name),
        performance=variations["performance_dataset_path"] if known.performance_dataset else "",
        compliance=variations["compliance_dataset_path"] if known.compliance_dataset else "",
        dataset=variations["dataset_path"],
        calibration=variations["calibration_path"] if inputs.calibration_path else _TINY if stand_in else _BENCHMARK,
    )


def _model(inputs: AssetInputs, tiny: str) -> tuple[str, str]:
    """Return the variation of the model that was asked for, empty for none, and the one that is used.

    `tiny` gives the stand-in of the benchmark. Raises UsageError for two models, and for random weights that cannot be.
    """
    name, served = inputs.vllm_model_name, inputs.served
    named = "" if typed_path(name).is_dir() else stand_in_named(name)
    asked = {_TINY: tiny, _DUMMY: f"{_DUMMY}.{inputs.model}"}.get(inputs.source, inputs.source)
    asked = asked or (f"_{named}" if named else "")
    for variation in (asked[1:], named):
        if variation in STAND_INS and variation != tiny[1:]:
            raise UsageError(
                f"{STAND_INS[variation].name} cannot stand for the model of {inputs.model}",
                cause="it was trained on samples of another kind",
                remedy=f"leave it out: {STAND_INS[tiny[1:]].name} is used without more; or name it by "
                "--vllm_model_name",
            )
    model = asked or (_of_name(name, served=served) if name else tiny)
    if asked and name and not served and not named and name != asked.partition(".")[2]:
        raise UsageError(
            f"two models are named: {asked} and --vllm_model_name={name}",
            cause="the server is started for one of them",
            remedy="leave one out; with --api_server the name is that under which the model is served",
        )
    if model.startswith(_DUMMY) and not inputs.rehearse and tiny != _TINY:
        raise UsageError(
            f"random weights cannot stand for the model of {inputs.model}",
            cause="the folder that is made for them has no reader of media",
            remedy=f"leave _dummy out: {tiny} comes with cm4vllm",
        )
    return asked, model


def _require_use(given: dict[str, str], apart: dict[str, str], *, benchmark: str, model_is_missing: bool) -> None:
    """Raise UsageError for a flag in `given` whose path no run would use.

    `apart` names the datasets that some runs of the benchmark have of their own, each empty where it has none.
    """
    for kind, name in apart.items():
        if given[f"{kind}_path"] and not name:
            raise UsageError(
                f"--{kind}_path is given, but {benchmark} has one dataset for all runs",
                remedy="give it with --dataset_path",
            )
    if model_is_missing and any(given.values()):
        flag = next(name for name, path in given.items() if path)
        raise UsageError(
            f"--{flag} is given, but no model",
            cause="the stand-in model is used with its own dataset: it cannot answer other prompts",
            remedy="name the model: --vllm_model_name=HUB/ID or a folder; or ask for the stand-in explicitly, "
            "with _tiny among the tags",
        )


def _of_name(name: str, *, served: bool) -> str:
    """Return the variation of a model that is named: one of the catalogue, a folder, or one of the hub.

    A name that can only be a path is that of a folder, also where there is none, and of a file: what reads it says what
    it is. A server may report the folder of one that it serves; that is known when the server was asked.
    """
    if name == smollm2.VARIATION and not served and not typed_path(name).is_dir():
        return _SMOLLM2
    if name in catalogue().models:
        return f"_catalogue.{name}"
    folder = typed_path(name).absolute()
    is_path = folder.is_dir() or (
        not served and (folder.is_file() or name.startswith(_PATHS) or name.lower().endswith(GGUF))
    )
    return f"_path.{folder}" if is_path else f"_{'served' if served else 'hf'}.{name}"


def asked_quantisation(asked: str, benchmark: str, *, served: bool) -> str:
    """Return the variations of quantize,ml-model that --quantize=`asked` stands for, empty for none.

    `served` says that a server runs already, with its model. Raises UsageError, also for a scheme whose scales come
    from a calibration set where the benchmark has none.
    """
    words = [word.strip() for word in asked.split(",") if word.strip()]
    names = [word.removeprefix("_") for word in words]
    for word, name in zip(words, names, strict=True):
        if name not in (*schemes(), KV_FP8):
            raise UsageError(f"--quantize={word} is not supported", remedy=nearest(word, (*schemes(), KV_FP8)))
    chosen = [name for name in names if name != KV_FP8]
    if len(chosen) > 1:
        raise UsageError(
            f"--quantize={asked} names {len(chosen)} schemes", remedy=f"name one of them; {KV_FP8} can be added to it"
        )
    if names and served:
        raise UsageError(
            "--quantize cannot be given with --api_server",
            cause="the running server has already loaded its model",
            remedy="quantise it first (cm run script --tags=quantize,ml-model) and serve the result",
        )
    if chosen:
        require_scheme(QuantizationSettings(scheme=chosen[0], kv_fp8=KV_FP8 in names))
    calibrated = _calibrated_schemes(names)
    if calibrated and not catalogue().benchmark(benchmark).calibration:
        without = [name for name, scheme in schemes().items() if scheme.preset and not scheme.calibrated]
        raise UsageError(
            f"--quantize={asked} cannot be used for {benchmark}",
            cause=f"{calibrated[0]} computes its scales from a calibration set, and none is published for {benchmark}",
            remedy=f"use a scheme that needs none: {' or '.join(without)}",
        )
    return ",".join(f"_{name}" if name == KV_FP8 else f"_scheme.{name}" for name in names)


def needs_calibration(variations: str) -> bool:
    """Return True if the variations of quantize,ml-model compute scales from a calibration set; none need nothing."""
    return bool(
        _calibrated_schemes(name.removeprefix("_").removeprefix("scheme.") for name in variations.split(",") if name)
    )


def _calibrated_schemes(names: Iterable[str]) -> list[str]:
    return [name for name in names if name == KV_FP8 or schemes()[name].calibrated]
