"""Checks Kubernetes objects against the schemas that their projects publish."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cm4vllm.common.bounded_documents import yaml_of
from cm4vllm.common.errors import SourceUnavailable, UsageError
from cm4vllm.common.files import text_of
from cm4vllm.common.git.git_objects import objects_of
from cm4vllm.common.git.git_source import git_directory

_KSERVE, _LWS = "kserve/kserve", "kubernetes-sigs/lws"
#: The repository with the definition of each kind, and the file of the definition in it.
_DEFINITIONS = {
    "InferenceService": (_KSERVE, "charts/kserve-crd/templates/serving.kserve.io_inferenceservices.yaml"),
    "LLMInferenceService": (_KSERVE, "charts/kserve-llmisvc-crd/templates/serving.kserve.io_llminferenceservices.yaml"),
    "LeaderWorkerSet": (_LWS, "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
}
_FLAGS = {_KSERVE: "--kserve_src", _LWS: "--lws_src"}


def check_objects(
    documents: list[dict[str, Any]], kserve: Path | None, version: str = "", *, lws: Path | None = None
) -> list[str]:
    """Check each object and return a sentence for each: by which schema it was checked, or why not.

    Kubernetes' own kinds are checked by kubernetes-validate, for the Kubernetes `version` or else the newest that it
    knows; others by the definitions in `kserve` and `lws`, checkouts or git directories of kserve/kserve and
    kubernetes-sigs/lws. A field that no schema names is an error.
    Raises UsageError for an object that does not fit.
    """
    said, sources = [], {_KSERVE: kserve, _LWS: lws}
    for document in documents:
        kind = document["kind"]
        repository, name = _DEFINITIONS.get(kind, ("", ""))
        source = sources.get(repository)
        if not repository:
            said.append(_check_builtin(document, version))
        elif source is None:
            said.append(f"{kind}: not checked: give a checkout of {repository} ({_FLAGS[repository]})")
        else:
            _check_custom(document, _definition(source, repository, name))
            said.append(f"{kind}: fits its definition in {source}")
    return said


def _check_builtin(document: dict[str, Any], version: str) -> str:
    import kubernetes_validate

    try:
        used = kubernetes_validate.validate(document, version or kubernetes_validate.latest_version(), strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        raise _unfit(document, f"{where}: {error.message}") from error
    except (kubernetes_validate.utils.VersionNotSupportedError, IndexError, ValueError) as error:
        # IndexError: the version is older than the oldest one there; ValueError: it is not a version.
        raise UsageError(
            f"no schema of Kubernetes {version} is known",
            remedy="give --kubernetes_version=MAJOR.MINOR, or leave it out",
        ) from error
    return f"{document['kind']}: fits the schema of Kubernetes {used}"


def _check_custom(document: dict[str, Any], definition: Mapping[str, Any]) -> None:
    import jsonschema

    version = document["apiVersion"].rpartition("/")[2]
    schemas = {each["name"]: each["schema"]["openAPIV3Schema"] for each in definition["spec"]["versions"]}
    if version not in schemas:
        raise _unfit(document, f"its definition has no version {version}, but {', '.join(schemas)}")
    validator = jsonschema.Draft202012Validator(_strict(schemas[version]))
    error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if error is not None:
        raise _unfit(document, f"{'.'.join(str(part) for part in error.path)}: {error.message}")


def _unfit(document: dict[str, Any], cause: str) -> UsageError:
    return UsageError(f"the {document['kind']} does not fit its published schema", cause=cause)


def _strict(schema: Any, *, top: bool = True) -> Any:
    """Return a structural schema as JSON Schema: integers or strings, and no fields that it does not name."""
    if isinstance(schema, list):
        return [_strict(each, top=False) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    done = {
        key: _strict(value, top=False)
        if key != "properties"
        else {name: _strict(each, top=False) for name, each in value.items()}
        for key, value in schema.items()
    }
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        done.setdefault("additionalProperties", False)
    if top:
        done["properties"]["metadata"] = {"type": "object"}
    return done


def _definition(source: Path, repository: str, name: str) -> Mapping[str, Any]:
    remedy = f"name a checkout or a git directory of {repository}"
    git = git_directory(source)
    if (source / name).is_file():
        text = text_of(source / name)
    elif git is not None:
        with objects_of(git, remedy=remedy) as objects:
            text = objects.read(objects.files(objects.commit("HEAD") or "HEAD", [name])[name]).decode()
    else:
        raise SourceUnavailable(f"{source} has no {name}", remedy=remedy)
    # A chart's template: lines of Helm's own are not YAML.
    text = re.sub(r"(?m)^\s*\{\{.*\}\}\s*$", "", text)
    definition: Mapping[str, Any] = yaml_of(text)
    return definition
