"""Checks deploy/kubernetes: every manifest against the schema of its kind, every file named by
a kustomization against what is there, and every selector against the labels it selects.

Needs the Python package kubernetes-validate, which carries Kubernetes' own schemas;
scripts/test installs it. Prints each kind and name.
"""
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "deploy/kubernetes"
VERSION = "1.31"
LABEL = "app.kubernetes.io/name"

# A ServiceMonitor is not Kubernetes' own: the fields we use, as the operator's definition has
# them.
REFERENCE = {
    "type": "object",
    "required": ["name", "key"],
    "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
}
SERVICE_MONITOR = {
    "type": "object",
    "additionalProperties": False,
    "required": ["selector", "endpoints"],
    "properties": {
        "selector": {"type": "object", "required": ["matchLabels"]},
        "endpoints": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": {"type": "string"},
                    "path": {"type": "string"},
                    "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"},
                    "scheme": {"enum": ["http", "https"]},
                    "authorization": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"type": {"type": "string"}, "credentials": REFERENCE},
                    },
                    "tlsConfig": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "serverName": {"type": "string"},
                            "ca": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {"secret": REFERENCE},
                            },
                        },
                    },
                },
            },
        },
    },
}


def check_manifest(path, manifest):
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if kind == "ServiceMonitor":
        jsonschema.validate(manifest["spec"], SERVICE_MONITOR)
    else:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    print(f"{path.relative_to(FOLDER)}: {kind} {name}")


def check_kustomization(path, content):
    """Every manifest beside it is named, and everything named is there."""
    named = set(content["resources"])
    for one in content.get("configMapGenerator", []):
        for file in one["files"]:
            assert (path.parent / file).is_file(), f"{path}: {file} is not there"
    for one in named:
        assert (path.parent / one).exists(), f"{path}: {one} is not there"
    beside = {file.name for file in path.parent.glob("*.yaml")} - {path.name}
    assert beside <= named, f"{path} leaves out {beside - named}"


def check_agreement(manifests):
    """Selectors select the pods, ports are the container's, secrets and maps are one each."""
    by_kind = {manifest["kind"]: manifest for manifest in manifests}
    template = by_kind["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    ports = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    selectors = [
        by_kind["Deployment"]["spec"]["selector"]["matchLabels"],
        by_kind["Service"]["spec"]["selector"],
        by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= labels.items(), f"{selector} selects no pod"
    watched = by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert watched.items() <= by_kind["Service"]["metadata"]["labels"].items()
    for port in by_kind["Service"]["spec"]["ports"]:
        assert port["targetPort"] in ports, f"{port} leads nowhere"
    target = by_kind["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
    assert target == by_kind["Deployment"]["metadata"]["name"]


def main():
    base = []
    for path in sorted(FOLDER.rglob("*.yaml")):
        content = yaml.safe_load(path.read_text())
        if path.name == "kustomization.yaml":
            check_kustomization(path, content)
            continue
        check_manifest(path, content)
        if path.parent.name == "base":
            base.append(content)
    check_agreement(base)


if __name__ == "__main__":
    sys.exit(main())
