"""Datasets in each published format become the same rows; what a pickle asks for is never run."""

import gzip
import json
import os
import pickle
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from cm4vllm.assets.samples import bounded_tables
from cm4vllm.assets.samples.published_formats import read_published, recorded_rows, write_rows
from cm4vllm.common.errors import DatasetError
from cm4vllm.common.files import sha256_of
from cm4vllm.records.assets import DatasetRecord

#: Files that pandas of the published files' years wrote: published/make.py.
PUBLISHED = Path(__file__).parent / "published"


@pytest.fixture
def in_this_process(monkeypatch):
    """Have the program that reads tables run here, without the bounds of its own process."""

    def run_here(words, **_):
        assert words[:4] == [sys.executable, "-P", "-m", bounded_tables.__name__]
        return SimpleNamespace(status=bounded_tables.main([str(word) for word in words[4:]]))

    monkeypatch.setattr(bounded_tables, "_bound", lambda memory_bytes, cpu_s: None)
    monkeypatch.setattr(bounded_tables, "run", run_here)


here = pytest.mark.usefixtures("in_this_process")


@pytest.mark.parametrize("pandas_version", ["pandas1", "pandas2"])
def test_open_orca_reads_as_its_reference_reads_it(pandas_version):
    rows = read_published(PUBLISHED / f"open_orca.{pandas_version}.pkl.gz")
    assert [row["tok_input"] for row in rows] == [[1, 5, 9], [1, 7]]
    assert [row["output"] for row in rows] == ["A port.", "A quay."]
    assert [row["input"] for row in rows] == ["What is a harbour?", "And a pier?"]
    assert [(row["tok_input_len"], row["score"], row["flag"]) for row in rows] == [(3, 0.5, True), (2, 1.0, False)]
    assert {type(row["flag"]) for row in rows} == {bool}


@pytest.mark.parametrize("pandas_version", ["pandas1", "pandas2"])
@here
def test_mixtral_keeps_the_columns_that_its_scorers_need(pandas_version):
    rows = read_published(PUBLISHED / f"mixtral.{pandas_version}.pkl")
    assert [(row["dataset"], row["output"], row["tok_input"]) for row in rows] == [
        ("GSM8K", "4", [1, 2, 3]),
        ("MBXP", "pass", [1, 4]),
    ]


@pytest.mark.parametrize(("value", "text"), [(7, "7"), (7.0, "7"), (0.5, "0.5"), ("007", "007")])
@here
def test_an_answer_that_is_a_number_becomes_text(tmp_path, value, text):
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps([{"tok_input": [1], "ground_truth": value}]))
    assert read_published(tmp_path / "plain.pkl")[0]["output"] == text


@here
def test_token_ids_that_are_arrays_become_lists():
    rows = read_published(PUBLISHED / "llama3.1-405b.pandas2.pkl")
    assert [row["tok_input"] for row in rows] == [[1, 2, 3], [1, 4]]
    assert [row["metric"] for row in rows] == ["rouge", "exact_match"]
    json.dumps(rows)


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
@here
def test_a_frame_of_todays_pandas_is_read_whatever_the_protocol(tmp_path, protocol):
    import pandas

    frame = pandas.DataFrame(
        {"input": ["a", "b"], "tok_input": [[1], [2]], "output": ["c", "d"], "n": [1, 2], "m": [3, 4], "x": [1.5, 2.5]}
    ).astype({"input": object, "output": object})
    frame.columns = frame.columns.astype(object)
    frame.to_pickle(tmp_path / "today.pkl", protocol=protocol)
    assert read_published(tmp_path / "today.pkl") == frame.to_dict(orient="records")


TEXTS = {"input": ["a", "b\u00e9", ""], "tok_input": [[1], [2, 3], []], "output": ["c", None, "e"], "n": [1, 2, 3]}


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize(
    "changed",
    [
        lambda frame: frame,
        lambda frame: frame.iloc[1:].reset_index(drop=True),
        lambda frame: frame.set_index(frame["input"]),
        lambda frame: frame.astype({"input": "string"}),
        lambda frame: __import__("pandas").concat([frame, frame], ignore_index=True),
    ],
    ids=["as it is", "a part", "an index of texts", "the type string", "joined"],
)
@here
def test_texts_that_pandas_3_saves_as_pyarrows_arrays_are_read(tmp_path, changed, protocol):
    import pandas

    frame = changed(pandas.DataFrame(TEXTS))
    frame.to_pickle(tmp_path / "texts.pkl", protocol=protocol)
    wanted = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
    assert read_published(tmp_path / "texts.pkl") == wanted


@pytest.mark.parametrize(
    ("kind", "named"), [("Int64", "IntegerArray"), ("category", "NDArrayBacked"), ("datetime64[ns]", "NDArrayBacked")]
)
@here
def test_columns_of_other_types_of_pandas_are_named(tmp_path, kind, named):
    import pandas

    pandas.DataFrame({**TEXTS, "of": pandas.Series([1, 2, 3]).astype(kind)}).to_pickle(tmp_path / "typed.pkl")
    with pytest.raises(DatasetError) as caught:
        read_published(tmp_path / "typed.pkl")
    assert named in str(caught.value)
    assert "parquet" in caught.value.remedy


@here
def test_the_order_of_a_transposed_frame_is_kept(tmp_path):
    import pandas

    frame = pandas.DataFrame(numpy.arange(6).reshape(2, 3)).T
    frame.columns = pandas.Index(["tok", "output"], dtype=object)
    frame.to_pickle(tmp_path / "turned.pkl")
    assert read_published(tmp_path / "turned.pkl") == [{"tok": n, "output": n + 3} for n in range(3)]


@pytest.mark.parametrize("value", [[{"tok_input": (1, 2), "output": "a"}], {"tok_input": [(1, 2)], "output": ["a"]}])
@here
def test_plain_pickles_are_read(tmp_path, value):
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(value))
    assert read_published(tmp_path / "plain.pkl") == [{"tok_input": [1, 2], "output": "a"}]


def test_parquet_and_json_by_rows_and_by_columns_are_read(tmp_path):
    import pandas

    frame = pandas.DataFrame({"input_tokens": [[1, 2], [3]], "ground_truth": ["a", "b"], "dataset": ["aime", "gpqa"]})
    frame.to_parquet(tmp_path / "eval.parquet")
    rows = read_published(tmp_path / "eval.parquet")
    wanted = [([1, 2], "a", "aime"), ([3], "b", "gpqa")]
    assert [(row["tok_input"], row["output"], row["dataset"]) for row in rows] == wanted
    frame = pandas.DataFrame({"input": ["a", "b"], "tok_input": [[1], [2]], "output": ["c", "d"]})
    for orient in ("records", "columns"):
        frame.to_json(tmp_path / "cnn_eval.json", orient=orient)
        assert read_published(tmp_path / "cnn_eval.json") == frame.to_dict(orient="records")


class Command:
    """Unpickled by anybody else, this makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch '{self.path}'",))


def malicious(kind, witness):
    import pandas

    if kind == "alone":
        return pickle.dumps(Command(witness))
    if kind == "in a cell":
        frame = pandas.DataFrame({"tok_input": [[1]], "output": numpy.array([Command(witness)], dtype=object)})
        return pickle.dumps(frame)
    if kind == "eval":
        return b'\x80\x04cbuiltins\neval\n(S\'open("%s", "w")\'\ntR.' % str(witness).encode()
    if kind == "by attribute":  # a dotted name reaches into what is allowed
        return b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93."
    state = b"(\x8c\x04_mgrcos\nsystem\n(S'touch %s'\ntRu" % str(witness).encode()
    return b"\x80\x04cpandas.core.frame\nDataFrame\n)\x81}" + state + b"b."


@here
@pytest.mark.parametrize("kind", ["alone", "in a cell", "eval", "by attribute", "in a state"])
def test_what_a_pickle_asks_for_is_not_run(tmp_path, kind):
    (tmp_path / "bad.pkl").write_bytes(malicious(kind, tmp_path / "witness"))
    with pytest.raises(DatasetError, match="safely") as caught:
        read_published(tmp_path / "bad.pkl")
    assert "it asks for" in caught.value.cause
    assert not (tmp_path / "witness").exists()
    if kind == "alone":  # it would have worked
        pickle.loads(malicious(kind, tmp_path / "witness"))
        assert (tmp_path / "witness").exists()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cut.pkl", pickle.dumps([{"a": 1}])[:-3]),
        ("empty.pkl", b""),
        ("number.pkl", pickle.dumps(5)),
        ("cut.pkl.gz", gzip.compress(pickle.dumps([{"a": 1}]), mtime=0)[:-6]),
        ("cut.parquet", b"PAR1"),
        ("cut.json", b"["),
    ],
)
@here
def test_half_a_file_is_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DatasetError) as caught:
        read_published(tmp_path / name)
    assert caught.value.cause
    assert caught.value.remedy


def laughs(depth: int) -> bytes:
    """A list of ten lists, each of which is the same list of ten lists, and so on."""
    value = ["ha"]
    for _ in range(depth):
        value = [value] * 10
    return pickle.dumps([{"tok_input": value, "output": "a"}])


def hashed(depth: int) -> bytes:
    """A dict whose key is a tuple of tuples that are the same: to hash it takes 2 ** depth steps."""
    return b"\x80\x04}K\x01" + b"2\x86" * depth + b"K\x01s."


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("laughs.pkl", lambda: laughs(12), "more values than a table of its size"),
        ("hashed.pkl", lambda: hashed(64), "more time than a table of its size"),
        ("zeros.pkl.gz", lambda: gzip.compress(bytes(96 * 2**20)), "more than 200 times its size"),
    ],
    ids=["laughs", "hashed", "zeros"],
)
def test_a_small_file_that_asks_for_much_is_refused_soon(tmp_path, monkeypatch, name, data, words):
    if name.startswith("hashed"):  # the others end by what they hold
        monkeypatch.setattr(bounded_tables, "CPU_S", 1)
    (tmp_path / name).write_bytes(data())
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(DatasetError) as caught:
        read_published(tmp_path / name)
    assert words in str(caught.value)
    assert caught.value.remedy
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert end.ru_utime - begin.ru_utime < 6


def test_one_that_takes_all_memory_is_refused_and_takes_no_more_than_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_tables, "MEMORY_BYTES", 2**26)
    empty = numpy.empty((5 * 10**7, 0), dtype=object)
    (tmp_path / "wide.pkl").write_bytes(pickle.dumps([{"tok_input": empty, "output": "a"}]))
    with pytest.raises(DatasetError, match="more memory than a table of its size"):
        read_published(tmp_path / "wide.pkl")


def test_a_parquet_file_of_one_value_without_end_is_refused(tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    monkeypatch.setattr(bounded_tables, "MEMORY_BYTES", 2**27)
    parquet.write_table(pyarrow.table({"tok_input": pyarrow.repeat(5, 3 * 10**7)}), tmp_path / "same.parquet")
    assert (tmp_path / "same.parquet").stat().st_size < 10**6
    with pytest.raises(DatasetError, match="more memory than a table of its size"):
        read_published(tmp_path / "same.parquet")


def test_a_process_that_fails_for_another_reason_is_no_fault_of_the_file(tmp_path, monkeypatch):
    (tmp_path / "good.pkl").write_bytes(pickle.dumps([{"tok_input": [1], "output": "a"}]))
    (tmp_path / "msgspec.py").write_text("raise OSError('no space left')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DatasetError, match="the process that reads it failed") as caught:
        read_published(tmp_path / "good.pkl")
    assert "no space left" in caught.value.cause
    assert "the file may be good" in caught.value.remedy


@pytest.mark.parametrize("value", [2**70, "half \udc80"])
@here
def test_a_value_that_no_dataset_has_is_refused(tmp_path, value):
    (tmp_path / "odd.pkl").write_bytes(pickle.dumps([{"tok_input": [1], "output": value}]))
    with pytest.raises(DatasetError):
        read_published(tmp_path / "odd.pkl")


def test_a_list_that_many_rows_share_is_no_reason_to_refuse(tmp_path):
    shared = list(range(100))
    (tmp_path / "shared.pkl").write_bytes(pickle.dumps([{"tok_input": shared, "output": "a"} for _ in range(5000)]))
    assert len(read_published(tmp_path / "shared.pkl")) == 5000


def test_rows_of_a_file_that_has_changed_are_refused(tmp_path):
    path, rows = tmp_path / "rows.json", [{"tok_input": [1], "output": "a"}]
    write_rows(path, rows)
    dataset = DatasetRecord(
        name="rows", path=str(path), source="the test", sha256=sha256_of(path), samples=1, max_input_tokens=1
    )
    assert recorded_rows(dataset, "") == rows
    write_rows(path, [*rows, *rows])
    with pytest.raises(DatasetError, match="has changed since its record was made") as caught:
        recorded_rows(dataset, "run again")
    assert caught.value.remedy == "run again"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("README.md", "data/train-00001.parquet", "data/train-00000.parquet", "dataset_infos.json"), "train-00000"),
        (("cnn_eval.json", "b.pkl.gz", "c.pkl", "d.json"), "b.pkl.gz"),
        (("data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "state.json", "dataset_info.json"), "format"),
        ((), "format"),
    ],
)
def test_a_folder_is_named_as_one_with_the_file_to_give(tmp_path, files, said):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(DatasetError, match="is a folder, and the dataset is one file") as caught:
        read_published(tmp_path)
    assert said in caught.value.remedy
    assert "state.json" not in caught.value.cause and "infos" not in caught.value.cause
    assert ("and 1 more" in caught.value.cause) is (len(files) == 4 and "b.pkl.gz" in files)


@pytest.mark.parametrize("name", ["cnn_eval.json", "data.pkl.gz", "data.parquet"])
def test_a_pointer_of_git_lfs_is_named_as_one(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with pytest.raises(DatasetError, match="pointer of git-lfs"):
        read_published(tmp_path / name)
