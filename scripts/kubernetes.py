"""Checks the manifests of deploy/: each against the schema of its kind, and that they fit each
other, the configuration they bring and the secrets that the documentation makes.

    python3 scripts/kubernetes.py [ROOT]

Needs the Python package kubernetes-validate, which carries Kubernetes' own schemas;
scripts/test installs it. Prints each kind and name. Resources that are not Kubernetes' own are
checked by the tests of the server, with the schemas of their makers.
"""
import copy
import pathlib
import shlex
import sys
import tomllib

import kubernetes_validate
import yaml

VERSION = "1.31"
OWN = ("v1", "apps/v1", "batch/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1")
VARIANTS = ("kubernetes/redis", "kubernetes/postgres", "istio")
# Which key of `[server]` names the address behind a container's port.
ADDRESSES = {"decide": "listen", "grpc": "grpc", "admin": "admin"}


def check(holds, message):
    if not holds:
        sys.exit(f"the manifests do not fit: {message}")


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def merged(old, new):
    """A strategic merge as far as we use it: maps key by key, lists by the items' names."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: merged(old.get(key), value) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        named = {one["name"]: one for one in old}
        for one in new:
            named[one["name"]] = merged(named.get(one["name"], {}), one)
        return list(named.values())
    return new


def identity(manifest):
    return manifest["kind"], manifest["metadata"]["name"]


def build(folder):
    """The manifests of a kustomization and the files of its ConfigMap."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    manifests, files = [], {}
    for name in kustomization["resources"]:
        path = folder / name
        check(path.exists(), f"{folder.name} names {name}, which is not there")
        below, inherited = build(path) if path.is_dir() else (documents(path), {})
        manifests += copy.deepcopy(below)
        files |= inherited
    for patch in kustomization.get("patches", []):
        for change in documents(folder / patch["path"]):
            at = [identity(one) for one in manifests].index(identity(change))
            manifests[at] = merged(manifests[at], change)
    for manifest in manifests:
        manifest["metadata"].setdefault("namespace", kustomization.get("namespace"))
        if kustomization.get("namespace"):
            manifest["metadata"]["namespace"] = kustomization["namespace"]
    for generated in kustomization.get("configMapGenerator", []):
        files |= {name: (folder / name).read_text() for name in generated["files"]}
    check_complete(folder, kustomization)
    return manifests, files


def check_complete(folder, kustomization):
    """Every manifest beside a kustomization is named in it."""
    named = set(kustomization["resources"])
    named |= {patch["path"] for patch in kustomization.get("patches", [])}
    beside = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    check(beside <= named, f"{folder.name} leaves out {beside - named}")


class Variant:
    """What one `kubectl apply -k` brings."""

    def __init__(self, folder):
        self.manifests, files = build(folder)
        self.config = tomllib.loads(files["palisade.toml"])
        self.deployment = self.one("Deployment")
        self.service = self.one("Service")
        self.pod = self.deployment["spec"]["template"]
        self.container = self.pod["spec"]["containers"][0]
        self.ports = {p["name"]: p["containerPort"] for p in self.container["ports"]}
        self.labels = self.pod["metadata"]["labels"]

    def all(self, kind):
        return [one for one in self.manifests if one["kind"] == kind]

    def one(self, kind):
        (found,) = self.all(kind)
        return found

    def host(self):
        about = self.service["metadata"]
        return f"{about['name']}.{about['namespace']}.svc.cluster.local"


def selectors(variant):
    """Every selector that is meant for Palisade's own pods, by whose it is."""
    yield "Service", variant.service["spec"]["selector"]
    for constraint in variant.pod["spec"]["topologySpreadConstraints"]:
        yield "topologySpreadConstraints", constraint["labelSelector"]["matchLabels"]
    for kind in ("Deployment", "PodDisruptionBudget", "PeerAuthentication", "AuthorizationPolicy"):
        for one in variant.all(kind):
            yield kind, one["spec"]["selector"]["matchLabels"]
    for one in variant.all("NetworkPolicy"):
        yield "NetworkPolicy", one["spec"]["podSelector"]["matchLabels"]
    for one in variant.all("Sidecar"):
        yield "Sidecar", one["spec"]["workloadSelector"]["labels"]


def check_selectors(variant):
    for whose, selector in selectors(variant):
        selected = selector and selector.items() <= variant.labels.items()
        check(selected, f"{whose} selects {selector}, the pods have {variant.labels}")
    target = variant.one("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"]
    check(target == variant.deployment["metadata"]["name"], f"nothing named {target} to scale")
    watched = variant.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    labels = variant.service["metadata"]["labels"]
    check(watched.items() <= labels.items(), "ServiceMonitor selects no Service")


def opened(variant):
    """The ports that the network policies let somebody reach."""
    for policy in variant.all("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            yield from (port["port"] for port in rule["ports"])


def check_ports(variant):
    """Container, Service, network policies, probes and monitor speak of the same ports."""
    service = {port["name"]: port for port in variant.service["spec"]["ports"]}
    check(service.keys() == variant.ports.keys(), f"the Service has {list(service)}")
    for name, port in service.items():
        leads = port["targetPort"] == name and port["port"] == variant.ports[name]
        check(leads, f"port {name} of the Service leads elsewhere")
    reachable = set(opened(variant))
    check(reachable == variant.ports.keys(), f"the network policies open {reachable}")
    asked = [variant.container[f"{probe}Probe"]["httpGet"]["port"] for probe in ("readiness", "liveness")]
    asked += [end["port"] for end in variant.one("ServiceMonitor")["spec"]["endpoints"]]
    check(set(asked) <= variant.ports.keys(), f"{asked} are not all ports")
    for name, key in ADDRESSES.items():
        address = variant.config["server"][key]
        if address.startswith("unix:"):
            check_socket(variant, address.removeprefix("unix:"), variant.ports[name])
        else:
            check(address == f"0.0.0.0:{variant.ports[name]}", f"`server.{key}` is {address}")


def check_socket(variant, path, port):
    """The sidecar hands the port's calls to the socket file, in a folder that both can reach."""
    (ingress,) = variant.one("Sidecar")["spec"]["ingress"]
    check(ingress["port"]["number"] == port, "the sidecar takes calls of another port")
    check(ingress["defaultEndpoint"] == f"unix://{path}", f"nobody listens for {ingress}")
    folder = str(pathlib.PurePosixPath(path).parent)
    mounts = {mount["mountPath"]: mount["name"] for mount in variant.container["volumeMounts"]}
    shared = variant.pod["metadata"]["annotations"]["sidecar.istio.io/userVolumeMount"]
    (shared,) = yaml.safe_load(shared)
    check(mounts.get(folder) == shared["name"] and shared["mountPath"] == folder, f"{folder} is not shared")


def check_istio(variant):
    """Whoever asks asks our Service, and what guards the port guards that one."""
    port = variant.ports["grpc"]
    text = yaml.dump(variant.one("EnvoyFilter"))
    check(f"outbound|{port}||{variant.host()}" in text, "the gateway asks another service")
    (rule,) = variant.one("AuthorizationPolicy")["spec"]["rules"]
    (to,) = rule["to"]
    check(to["operation"]["ports"] == [str(port)], "AuthorizationPolicy guards another port")
    strict = variant.one("PeerAuthentication")["spec"]["portLevelMtls"]
    check(list(strict) == [str(port)], "PeerAuthentication is strict on another port")


def check_envoy_gateway(path, variant):
    """Envoy's pods are let in, call our Service by its name, and show what it asks for."""
    proxy, patches = documents(path)
    deployment = proxy["spec"]["provider"]["kubernetes"]["envoyDeployment"]
    labels = deployment["pod"]["labels"]
    callers = variant.all("NetworkPolicy")[0]["spec"]["ingress"][0]["from"][0]
    check(callers["podSelector"]["matchLabels"].items() <= labels.items(), "Envoy is not let in")
    check(callers["namespaceSelector"] == {}, "Envoy runs in another namespace")
    values = [patch["operation"]["value"] for patch in patches["spec"]["jsonPatches"]]
    cluster, listener, _ = values
    (end,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    address = end["endpoint"]["address"]["socket_address"]
    expected = {"address": variant.host(), "port_value": variant.ports["grpc"]}
    check(address == expected, f"Envoy calls {address}")
    shown = listener["typed_config"]["rate_limit_service"]["grpc_service"]["initial_metadata"]
    (variable,) = [one["name"] for one in deployment["container"]["env"]]
    check("caller_token" in variant.config["server"], "no token is asked for")
    wanted = {"key": "authorization", "value": f"Bearer %ENVIRONMENT({variable})%"}
    check(shown == [wanted], f"Envoy shows {shown}")


def secrets_used(node):
    """(secret, key) of every reference below, however it is written."""
    if isinstance(node, list):
        for one in node:
            yield from secrets_used(one)
    if not isinstance(node, dict):
        return
    for name, value in node.items():
        if name in ("secretKeyRef", "credentials") or (name == "secret" and "key" in value):
            yield value["name"], value["key"]
        elif name == "secret" and "items" in value:
            yield from ((value["secretName"], item["key"]) for item in value["items"])
        else:
            yield from secrets_used(value)


def files_used(variant):
    """(secret, key) of every file of a mounted secret that the configuration names."""
    volumes = {v["name"]: v["secret"]["secretName"] for v in variant.pod["spec"]["volumes"] if "secret" in v}
    for mount in variant.container["volumeMounts"]:
        for path in variant.config["tls"].values():
            folder, _, file = str(path).rpartition("/")
            if mount["name"] in volumes and folder == mount["mountPath"]:
                yield volumes[mount["name"]], file


def secrets_made(pages):
    """(secret, key) of every `kubectl create secret` on these pages."""
    for page in pages:
        text = page.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            words = shlex.split(line) if line.strip().startswith("kubectl ") else []
            if "secret" not in words or "create" not in words:
                continue
            name = words[words.index("generic") + 1]
            for word in words:
                if word.startswith("--from-"):
                    yield name, word.split("=")[1].rpartition("/")[2]


def check_secrets(root, variants, gateway):
    used = set(secrets_used(documents(gateway)))
    for variant in variants:
        used |= set(secrets_used(variant.manifests)) | set(files_used(variant))
    made = set(secrets_made([root / "docs/operations.md", root / "docs/envoy.md"]))
    check(used == made, f"secrets used {sorted(used - made)}, only made {sorted(made - used)}")


def main(root):
    deploy = root / "deploy"
    gateway = deploy / "envoy-gateway/palisade.yaml"
    variants = {name: Variant(deploy / name) for name in VARIANTS}
    for name, variant in variants.items():
        for manifest in variant.manifests:
            if manifest["apiVersion"] in OWN:
                kubernetes_validate.validate(manifest, VERSION, strict=True)
            print(f"{name}: {' '.join(identity(manifest))}")
        check_selectors(variant)
        check_ports(variant)
    check_istio(variants["istio"])
    check_envoy_gateway(gateway, variants["kubernetes/redis"])
    check_secrets(root, variants.values(), gateway)


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent.parent
    sys.exit(main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here))
