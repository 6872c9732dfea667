// Checks resources against the schemas of their definitions and prints the parts that Envoy
// reads, as JSON: {"problems": [...], "filters": [...], "clusters": [...], "rate_limits": [...]}.
//
// node resources.cjs MODULES FILE...
"use strict";
const fs = require("fs");
const path = require("path");
const [modules, ...files] = process.argv.slice(2);
const load = (name) => require(path.join(modules, "node_modules", name));
const yaml = load("yaml");

const HOMES = { "istio.io": "istio", "monitoring.coreos.com": "prometheus-operator" };

function model(document) {
  const [group] = document.apiVersion.split("/");
  const own = Object.keys(HOMES).find((end) => group.endsWith(end));
  const home = HOMES[own] ?? "envoy-gateway";
  const file = path.join("@kubernetes-models", home, document.apiVersion, document.kind);
  return load(file)[document.kind];
}

const found = { problems: [], resources: 0, filters: [], clusters: [], rate_limits: [] };

function take(value) {
  if (value.typed_config) found.filters.push(value);
  if (value.load_assignment) found.clusters.push(value);
  if (Array.isArray(value)) found.rate_limits.push(...value);
  if (value.rate_limits) found.rate_limits.push(...value.rate_limits);
}

for (const file of files) {
  for (const parsed of yaml.parseAllDocuments(fs.readFileSync(file, "utf8"))) {
    const document = parsed.toJS();
    found.resources += 1;
    try {
      new (model(document))(document).validate();
    } catch (error) {
      found.problems.push(`${path.basename(file)}: ${document.kind}: ${error.message}`);
    }
    for (const one of document.spec.configPatches ?? []) take(one.patch.value);
    for (const one of document.spec.jsonPatches ?? []) take(one.operation.value);
  }
}
console.log(JSON.stringify(found));
