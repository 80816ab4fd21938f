"""The options of a release by the syntax of its source package, and the list of those that vanished."""

import hashlib
import io
import re
import tarfile

import msgspec
import pytest
from packaging.version import Version

import vanished_options as tool
from cm4vllm.common.files import bytes_of
from cm4vllm.records.vllm import options as module
from loopback_server import Handler, LoopbackServer
from recipes import recipes

CONFIG = """
class ModelConfig:
    seed: int = 0
    eager: bool = False
    token: bool | str | None = None
"""
FRONTEND = """
class Base:
    root_path: str = ""
    no_docs: bool = False

    @classmethod
    def add_cli_args(cls, parser):
        kwargs = get_kwargs(cls)
        for key, value in kwargs.items():
            parser.add_argument(f"--{key.replace('_', '-')}", **value)

class FrontendArgs(Base):
    port: int = 8000
"""
ENGINE = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group("Model")
        group.add_argument("--seed", "-s", **model_kwargs["seed"])
        group.add_argument("--eager", **model_kwargs["eager"])
        group.add_argument("--token", **{**model_kwargs["token"], "default": None})
        aliased = model_kwargs["eager"]
        group.add_argument("--quick", **aliased)
        for name, kind in [("--old-a", str), ("--old-b", bool)]:
            group.add_argument(name, type=kind)
        parser.add_argument("--max_len", type=int)
        parser.add_argument("--quiet", action="store_true")
        parser.add_argument("--both", action=argparse.BooleanOptionalAction)
        parser.add_argument("--maybe", action=StoreBoolean, nargs="?", const="True")
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument(computed)
"""
OPTIONS = {
    **dict.fromkeys(("--seed", "-s", "--old-a", "--old-b", "--max-len", "--root-path", "--port"), "always"),
    **dict.fromkeys(("--eager", "--no-eager", "--quick", "--no-quick", "--quiet", "--both", "--no-both"), "never"),
    **dict.fromkeys(("--no-docs", "--no-no-docs"), "never"),
    **dict.fromkeys(("--token", "--maybe"), "optional"),
}


def source_package(folder, version, **texts):
    path = folder / f"vllm-{version}.tar.gz"
    texts = {**texts, "batch": "class BatchArgs(Base):\n    lost: int = 0\n"}  # of another program's parser
    paths = {
        "batch": "entrypoints/launchers/run_batch.py",
        "config": "config/model.py",
        "frontend": "entrypoints/openai/cli_args.py",
        "engine": "engine/arg_utils.py",
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {"worker.py": "not Python (", **{paths[key]: text for key, text in texts.items()}}.items():
            member = tarfile.TarInfo(f"vllm-{version}/vllm/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_options_are_read_by_syntax_from_calls_loops_and_fields(tmp_path, capsys):
    package = source_package(tmp_path, "0.9.0", config=CONFIG, frontend=FRONTEND, engine=ENGINE)
    assert tool.options_of(tool.read_source(package)) == OPTIONS
    assert capsys.readouterr().err == "not resolved: parser.add_argument(computed)\n"


def test_the_list_has_the_releases_of_each_option_that_the_newest_has_not(tmp_path, capsys):
    source_package(tmp_path, "0.9.2", frontend="", engine='def f(p):\n p.add_argument("--a")\n p.add_argument("--b")')
    source_package(tmp_path, "0.10.0", frontend="", engine='def f(p):\n p.add_argument("--a")\n p.add_argument("--c")')
    source_package(tmp_path, "0.11.0", frontend="", engine='def f(p):\n p.add_argument("--c", action="store_true")')
    (tmp_path / "vllm-0.11.0.whl").touch()
    assert list(tool.source_packages(tmp_path)) == [Version("0.9.2"), Version("0.10.0"), Version("0.11.0")]
    tool.main(tmp_path)
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")] == [
        "--b: {since: 0.9.2, last: 0.9.2, gone: 0.10.0, value: always}",
        "--a: {since: 0.9.2, last: 0.10.0, gone: 0.11.0, value: always}",
    ]


class Index(LoopbackServer):
    """A package index of some files, with one page in JSON; `spoiled` files have other bytes than the page says."""

    files: dict[str, bytes] = {}
    spoiled = False
    asked: list[str] = []

    def __enter__(self):
        class Page(Handler):
            def do_GET(self):
                index, name = self.server_of, self.path.rpartition("/")[2]
                index.asked.append(name)
                self.send(200, (index.files[name] + b"x" * index.spoiled) if name else index.page(), "text/plain")

        self.asked = []
        return self.start(Page)

    def page(self):
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()}
        entries = [{"filename": name, "url": f"../{name}", "hashes": {"sha256": d}} for name, d in digests.items()]
        return msgspec.json.encode({"files": entries})


def test_the_releases_before_the_tenth_and_the_newest_of_each_later_one_are_downloaded(tmp_path, monkeypatch):
    versions = ("0.4.3", "0.5.0", "0.5.0.post1", "0.9.2", "0.10.0", "0.10.2", "0.11.0rc1", "0.12.0")
    with Index() as index:
        index.files = {f"vllm-{version}.tar.gz": version.encode() for version in versions}
        index.files["vllm-0.12.0-py3-none-any.whl"] = b"wheel"
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.port}/simple/")
        tool.download(tmp_path)
        kept = {str(version): path.read_text() for version, path in tool.source_packages(tmp_path).items()}
        index.spoiled = True
        with pytest.raises(SystemExit, match=r"vllm-0\.5\.0\.tar\.gz is not what the index says"):
            tool.download(tmp_path)
    assert kept == {version: version for version in ("0.5.0", "0.5.0.post1", "0.9.2", "0.10.2", "0.12.0")}
    assert index.asked[:2] == ["", "vllm-0.5.0.tar.gz"]


@pytest.mark.parametrize(("kind", "value"), [("int", "always"), ("bool | None", "switch"), ("bool | str", "optional")])
def test_an_annotation_says_whether_a_value_follows(kind, value):
    assert tool._of_annotation(kind) == value


def test_no_text_of_a_recipe_names_an_option_that_vanished():
    vanished = set(msgspec.yaml.decode(bytes_of(module.STORED_OPTIONS.with_name("vanished.yaml"))))
    named = {
        word
        for script in recipes().values()
        for word in re.findall(r"(?<![\w-])--[\w-]+", (script.path / "_cm.yaml").read_text())
        if word.lstrip("-") not in script.input_mapping
    }
    assert "--long-prefill-token-threshold" in named
    assert named & vanished == set()
