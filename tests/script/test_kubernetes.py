"""generate,kubernetes-manifests as a user types it."""

import yaml


def test_the_recipe_writes_checked_manifests(cm, tmp_path):
    done = cm(
        "run",
        "script",
        "--tags=generate,kubernetes-manifests",
        "--vllm_model_name=owner/name",
        "--image=example.org/v:1",
        "--tp_size=2",
        f"--output_dir={tmp_path}",
        "--quiet",
    )
    assert done.code == 0, done.output
    deployment, service = yaml.safe_load_all((tmp_path / "manifests.yaml").read_text())
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert service["kind"] == "Service"
    assert "Deployment: fits the schema of Kubernetes" in done.output


def test_a_pod_without_an_image_is_refused(cm, tmp_path):
    done = cm(
        "run",
        "script",
        "--tags=generate,kubernetes-manifests",
        "--vllm_model_name=owner/name",
        f"--output_dir={tmp_path}",
    )
    done.refused_with(20, "image")
    assert not (tmp_path / "manifests.yaml").exists()
