from pathlib import Path

import pytest
import yaml

from cm4vllm.common.errors import UsageError
from cm4vllm.engine.format import meta
from cm4vllm.engine.format.meta import load_script
from cm4vllm.engine.format.variations import definition, resolve


@pytest.fixture
def script(tmp_path: Path):
    def make(variations, **meta):
        tmp_path.joinpath("_cm.yaml").write_text(
            yaml.safe_dump({"alias": "s", "variations": variations, **meta}, sort_keys=False)
        )
        return load_script(str(tmp_path), "repo")

    return make


def names(resolution):
    return list(resolution.names)


def test_excluded_base_is_an_error(script):
    with pytest.raises(UsageError, match="builds on _low"):
        resolve(script({"top": {"base": ["low"]}, "low": {}}), ["top"], ["low"])


def test_dynamic_base_gives_way_to_another_value(script):
    s = script({"top": {"base": ["size.1"]}, "size.#": {}})
    assert names(resolve(s, ["top"])) == ["size.1", "top"]
    assert names(resolve(s, ["top", "size.2"])) == ["top", "size.2"]


def test_default_variations_give_way_to_a_choice(script):
    group = {"group": "g"}
    s = script({"top": {"default_variations": {"g": "b"}}, "a": {**group, "default": True}, "b": group, "c": group})
    assert set(names(resolve(s, ["top", "c"]))) == {"top", "c"}


def test_dynamic_value_replaces_the_sign_everywhere(script):
    s = script({"package.#": {"env": {"NAME": "#"}, "deps": [{"tags": "get,x,_v.#"}]}})
    variation = resolve(s, ["package.a.b"]).active[0]
    assert variation.layer.env == {"NAME": "a.b"}
    assert variation.layer.deps["deps"][0].tags == ("get", "x", "_v.a.b")


@pytest.mark.parametrize("name", ["package", "package.", "package.x.", "package.#"])
def test_dynamic_value_must_be_a_value(name):
    assert definition({"package.#": {}}, name) == ""


def test_combinations_apply_last_shorter_ones_first(script):
    s = script({"a,b,c": {}, "a,b": {}, "a": {}, "b": {}, "c": {}})
    assert [v.name for v in resolve(s, ["c", "b", "a"]).layers] == ["c", "b", "a", "a,b", "a,b,c"]


def test_combination_with_a_dynamic_part(script):
    s = script({"a,n.#": {"env": {"X": "#"}}, "a": {}, "n.#": {}})
    assert resolve(s, ["a", "n.7"]).combinations[0].layer.env == {"X": "7"}


def test_forbidden_combination(script):
    s = script({"a": {}, "b": {}}, invalid_variation_combinations=[["a", "b"]])
    with pytest.raises(UsageError, match="cannot be combined"):
        resolve(s, ["a", "b"])


def test_where_valid_combinations_are_listed_one_of_them_must_be_on(script):
    s = script({"a": {}, "b": {}, "c": {}}, valid_variation_combinations=[["a", "b"], ["c"]])
    assert names(resolve(s, ["b", "a"])) == ["b", "a"]
    with pytest.raises(UsageError, match="does not permit this combination") as refused:
        resolve(s, ["a"])
    assert refused.value.remedy == "choose _a,_b or _c"


def test_default_variation_is_on_when_none_is_asked_for(script):
    s = script({"a": {}, "b": {}}, default_variation="a")
    assert names(resolve(s, [])) == ["a"]
    assert names(resolve(s, ["b"])) == ["b"]


def test_group_defaults_come_before_what_was_asked_for(script):
    s = script({"asked": {}, "default": {"group": "g", "default": True}})
    assert names(resolve(s, ["asked"])) == ["default", "asked"]


def test_a_variation_is_read_once_and_only_when_it_is_on(script, monkeypatch):
    read = []
    original = meta.Variation.of
    monkeypatch.setattr(meta.Variation, "of", lambda name, *rest: read.append(name) or original(name, *rest))
    s = script({"a": {"base": ["b"]}, "b": {}, "v.#": {}, "a,b": {}, "off": {}})
    for _ in range(2):
        assert names(resolve(s, ["a", "v.1", "v.2"])) == ["b", "a", "v.1", "v.2"]
    assert sorted(read) == ["a", "a,b", "b", "v.1", "v.2"]
