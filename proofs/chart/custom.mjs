// Reads custom resources as JSON from standard input; prints what their schemas say against them, and
// what TypeScript says of fields that their models do not have.
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";

const packages = {
  "keda.sh/v1alpha1": "@kubernetes-models/keda/keda.sh/v1alpha1",
  "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
};
const objects = JSON.parse(readFileSync(0, "utf8"));
const wrong = [];
const lines = [];
for (const [index, object] of objects.entries()) {
  const from = `${packages[object.apiVersion]}/${object.kind}`;
  const { [object.kind]: Model } = await import(from);
  try {
    new Model(object).validate();
  } catch (error) {
    wrong.push(`${object.kind} ${object.metadata.name}: ${error.message}`);
  }
  lines.push(`import { I${object.kind} as Model${index} } from "${from}";`);
  lines.push(`export const object${index}: Model${index} = ${JSON.stringify(object)};`);
}
writeFileSync("objects.mts", lines.join("\n"));
const options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext"];
try {
  execFileSync("node_modules/.bin/tsc", [...options, "objects.mts"], { encoding: "utf8" });
} catch (error) {
  wrong.push(...error.stdout.trim().split("\n"));
}
console.log(JSON.stringify(wrong));
