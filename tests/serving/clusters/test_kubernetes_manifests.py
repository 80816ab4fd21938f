"""Manifests for Kubernetes: what was described, in the form that the published schemas allow."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from cm4vllm.common.errors import SourceUnavailable, UsageError
from cm4vllm.common.secrets.secret_forms import is_secret_name
from cm4vllm.serving.clusters.kubernetes_manifests import PodSettings, manifests, write_manifests
from cm4vllm.serving.clusters.kubernetes_schemas import check_objects

IMAGE = "example.org/vllm:1"
GIVEN = {"CM_VLLM_SERVER_MODEL_NAME": "owner/Model-7B.v1", "CM_KUBERNETES_IMAGE": IMAGE}


def objects(**env):
    return manifests(PodSettings.of({**GIVEN, **env}))


def container(document):
    spec = document["spec"]
    return (
        spec["template"]["spec"] if document["kind"] == "Deployment" else spec.get("predictor") or spec["template"]
    )["containers"][0]


def pods(value):
    """Return all pods of a document, wherever they stand in it."""
    if isinstance(value, list):
        return [pod for part in value for pod in pods(part)]
    if not isinstance(value, dict):
        return []
    return ([value] if "containers" in value else []) + pods(list(value.values()))


@pytest.mark.parametrize("kind", ["deployment", "kserve", "leader-worker-set", "llm-d"])
def test_no_pod_gets_the_variables_of_services(kind):
    env = {"CM_KUBERNETES_KIND": kind}
    env |= {"CM_KUBERNETES_IMAGE": ""} if kind == "llm-d" else {}
    env |= {"CM_VLLM_SERVER_NODES": "2", "CM_VLLM_SERVER_TP_SIZE": "2"} if kind == "leader-worker-set" else {}
    made = pods(objects(**env))
    assert made and all(pod["enableServiceLinks"] is False for pod in made)


@pytest.mark.parametrize("kind", ["deployment", "kserve"])
def test_the_pod_starts_the_server_that_the_inputs_describe(kind):
    document = objects(
        CM_KUBERNETES_KIND=kind,
        CM_VLLM_SERVER_TP_SIZE="4",
        CM_VLLM_SERVER_PP_SIZE="2",
        CM_VLLM_SERVER_MAX_NUM_SEQS="512",
        CM_VLLM_SERVER_EXTRA_ARGS="--swap-space 8",
    )[0]
    pod = container(document)
    assert pod["command"] == ["vllm", "serve"]
    assert pod["args"][0] == "owner/Model-7B.v1"
    pairs = dict(zip(pod["args"], pod["args"][1:], strict=False))
    assert (pairs["--tensor-parallel-size"], pairs["--pipeline-parallel-size"]) == ("4", "2")
    assert (pairs["--host"], pairs["--max-num-seqs"], pairs["--swap-space"]) == ("0.0.0.0", "512", "8")
    assert "--no-enable-prefix-caching" in pod["args"]
    assert "--enforce-eager" not in pod["args"]
    assert pod["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert pod["image"] == IMAGE


def test_a_model_on_a_volume_is_mounted_and_asks_no_hub():
    deployment = objects(CM_VLLM_SERVER_MODEL_NAME="pvc://models/llama/8b")[0]
    pod = container(deployment)
    assert pod["args"][0] == "/mnt/models/llama/8b"
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in pod["env"]
    claims = [each.get("persistentVolumeClaim") for each in deployment["spec"]["template"]["spec"]["volumes"]]
    assert {"claimName": "models", "readOnly": True} in claims


def test_a_service_finds_the_pods_of_a_fixed_number():
    deployment, service = objects(CM_KUBERNETES_REPLICAS="3")
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == deployment["metadata"]["name"] == "model-7b-v1"
    assert deployment["spec"]["replicas"] == 3
    predictor = objects(CM_KUBERNETES_REPLICAS="3", CM_KUBERNETES_KIND="kserve")[0]["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (3, 3)


def test_llm_d_is_told_once_what_its_own_fields_say():
    (document,) = objects(
        CM_KUBERNETES_KIND="llm-d",
        CM_VLLM_SERVER_TP_SIZE="2",
        CM_KUBERNETES_IMAGE="",
        CM_VLLM_SERVER_EXTRA_ARGS="""--hf-overrides '{"a b": 1}'""",
    )
    words = next(
        shlex.split(each["value"]) for each in container(document)["env"] if each["name"] == "VLLM_ADDITIONAL_ARGS"
    )
    assert document["spec"]["parallelism"] == {"tensor": 2}
    assert document["spec"]["model"] == {"uri": "hf://owner/Model-7B.v1", "name": "Model-7B.v1"}
    assert not {"--tensor-parallel-size", "--port", "--host", "--served-model-name", "2"} & set(words)
    assert words[-2:] == ["--hf-overrides", '{"a b": 1}']
    assert "image" not in container(document)


def leader_and_worker(**env):
    document, service = objects(CM_KUBERNETES_KIND="leader-worker-set", CM_VLLM_SERVER_NODES="2", **env)
    template = document["spec"]["leaderWorkerTemplate"]
    pods = [template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")]
    return document, service, pods


def test_one_server_over_several_pods_is_a_leader_and_workers():
    sizes = {"CM_VLLM_SERVER_TP_SIZE": "8", "CM_VLLM_SERVER_PP_SIZE": "2"}
    document, service, (leader, worker) = leader_and_worker(**sizes)
    assert document["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert [pod["resources"]["limits"] for pod in (leader, worker)] == [{"nvidia.com/gpu": "8"}] * 2
    end = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "$(VLLM_HOST_IP)", "--master-port", "29500"]
    assert leader["args"][-8:] == end
    end[3], end[5] = "$(LWS_WORKER_INDEX)", "$(LWS_LEADER_ADDRESS)"
    assert worker["args"][-9:] == ["--headless", *end]
    assert "readinessProbe" in leader and "readinessProbe" not in worker
    selector = service["spec"]["selector"]
    assert selector == {
        "leaderworkerset.sigs.k8s.io/name": "model-7b-v1",
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }


def test_the_rank_of_engines_on_a_pod_is_computed_where_it_starts(tmp_path):
    sizes = {"CM_VLLM_SERVER_DP_SIZE": "4", "CM_VLLM_SERVER_TP_SIZE": "2"}
    _, _, (leader, worker) = leader_and_worker(**sizes)
    assert leader["args"][-6:-4] == ["--data-parallel-size-local", "2"]
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    # As Kubernetes replaces variables: $$ stands for a dollar sign.
    words = [word.replace("$$", "$") for word in (*worker["command"], *worker["args"])]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LWS_WORKER_INDEX": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout.splitlines()
    assert done[0] == "serve"
    assert done[done.index("--data-parallel-start-rank") + 1] == "2"
    assert done[done.index("--data-parallel-size-local") + 1] == "2"
    _, _, (_, worker) = leader_and_worker(CM_VLLM_SERVER_DP_SIZE="2")
    assert worker["args"][worker["args"].index("--data-parallel-start-rank") + 1] == "$(LWS_WORKER_INDEX)"


@pytest.mark.parametrize(
    ("kind", "nodes"), [("leader-worker-set", "1"), ("leader-worker-set", "a,b"), ("deployment", "2"), ("llm-d", "2")]
)
def test_pods_of_one_server_are_a_leader_worker_set_and_a_number(kind, nodes):
    with pytest.raises(UsageError, match="--nodes"):
        objects(CM_KUBERNETES_KIND=kind, CM_VLLM_SERVER_NODES=nodes, CM_VLLM_SERVER_TP_SIZE="2")


LWS = os.environ.get("LWS_GIT", "")


@pytest.mark.parametrize("model", ["owner/name", "pvc://models/llama"])
@pytest.mark.parametrize("size", ["TP", "DP"])
def test_a_leader_worker_set_fits_its_definition(model, size):
    document, service, _ = leader_and_worker(
        **{"CM_VLLM_SERVER_MODEL_NAME": model, f"CM_VLLM_SERVER_{size}_SIZE": "4", "CM_KUBERNETES_NAME": "m"}
    )
    assert "not checked: give a checkout of kubernetes-sigs/lws" in check_objects([document], None)[0]
    if not LWS:
        pytest.skip("LWS_GIT does not name a checkout or git directory of kubernetes-sigs/lws")
    assert all("fits" in sentence for sentence in check_objects([document, service], None, lws=Path(LWS)))
    document["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(UsageError, match="does not fit"):
        check_objects([document], None, lws=Path(LWS))


def test_the_token_is_a_reference(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    env = {**GIVEN, "CM_KUBERNETES_HF_TOKEN_SECRET_NAME": "hub", "HF_TOKEN": "hf_secret"}
    text = Path(write_manifests(PodSettings.of({**env, "CM_KUBERNETES_DIR": str(tmp_path)})).path).read_text()
    assert "hf_secret" not in text
    assert "secretKeyRef" in text
    assert not is_secret_name("hf_token_secret_name")  # it names a Secret; the word is not hidden where it is met
    with pytest.raises(UsageError, match="a token in --extra_args") as caught:
        objects(CM_VLLM_SERVER_EXTRA_ARGS="--hf-token s3cret-1")
    assert "--hf_token_secret_name" in caught.value.remedy and "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"CM_KUBERNETES_IMAGE": ""}, "image"),
        ({"CM_KUBERNETES_NAME": "My_Name"}, "My_Name"),
        ({"CM_VLLM_SERVER_MODEL_NAME": "/models/llama"}, "cannot access"),
        ({"CM_VLLM_SERVER_MODEL_NAME": "pvc://"}, "claim"),
        ({"CM_KUBERNETES_REPLICAS": "0"}, "REPLICAS=0 is not usable"),
        ({"CM_KUBERNETES_KIND": "llm-d", "CM_KUBERNETES_HF_TOKEN_SECRET_NAME": "hub"}, "service account"),
        ({"CM_KUBERNETES_KIND": "swarm"}, "CM_KUBERNETES_KIND"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_here(env, why):
    with pytest.raises(UsageError, match=why):
        objects(**env)


def test_objects_fit_the_schema_of_kubernetes(tmp_path):
    env = {**GIVEN, "CM_KUBERNETES_CPU": "8", "CM_KUBERNETES_MEMORY": "64Gi", "CM_KUBERNETES_NAMESPACE": "bench"}
    path = write_manifests(PodSettings.of({**env, "CM_KUBERNETES_DIR": str(tmp_path)})).path
    documents = list(yaml.safe_load_all(Path(path).read_text()))
    assert [sentence.partition(":")[0] for sentence in check_objects(documents, None)] == ["Deployment", "Service"]


@pytest.mark.parametrize("spoil", [{"replicas": "three"}, {"replica": 3}])
def test_an_object_that_does_not_fit_is_told(spoil):
    document = objects()[0]
    document["spec"].update(spoil)
    with pytest.raises(UsageError) as caught:
        check_objects([document], None)
    assert next(iter(spoil)) in caught.value.cause


@pytest.mark.parametrize("version", ["0.1", "9.99", "new"])
def test_an_unknown_version_of_kubernetes_and_what_was_not_checked_are_told(version, tmp_path):
    with pytest.raises(UsageError, match=version):
        check_objects(objects(), None, version)
    served = objects(CM_KUBERNETES_KIND="kserve")
    assert "not checked" in check_objects(served, None)[0]
    with pytest.raises(SourceUnavailable):
        check_objects(served, tmp_path)


KSERVE = os.environ.get("KSERVE_GIT", "")


@pytest.fixture
def kserve():
    if not KSERVE:
        pytest.skip("KSERVE_GIT does not name a checkout or git directory of kserve/kserve")
    return Path(KSERVE)


@pytest.mark.parametrize("kind", ["kserve", "llm-d"])
@pytest.mark.parametrize("model", ["owner/name", "pvc://models/llama"])
def test_objects_fit_the_definitions_of_kserve(kserve, kind, model):
    documents = objects(CM_KUBERNETES_KIND=kind, CM_VLLM_SERVER_MODEL_NAME=model, CM_VLLM_SERVER_TP_SIZE="2")
    assert "fits" in check_objects(documents, kserve)[0]
    documents[0]["spec"]["replicaz"] = 1
    with pytest.raises(UsageError, match="does not fit"):
        check_objects(documents, kserve)
