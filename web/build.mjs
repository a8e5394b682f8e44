// Bundles the page's script and styles into the crate that embeds them, or (--tests) the tests for Node.
//
// The result is committed, and must be the same bytes wherever it is built: no paths, no times, no maps.

import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));

/** The licence of what is bundled goes with it. */
function licences() {
  const { version } = JSON.parse(readFileSync(join(here, "node_modules/uplot/package.json"), "utf8"));
  const text = readFileSync(join(here, "node_modules/uplot/LICENSE"), "utf8").trim();
  return `/*! Contains uPlot ${version}:\n${text}\n*/`;
}

const common = { absWorkingDir: here, bundle: true, target: "es2022", logLevel: "warning" };

if (process.argv.includes("--tests")) {
  const tests = readdirSync(join(here, "tests")).filter((name) => name.endsWith(".test.mjs"));
  await build({
    ...common,
    entryPoints: tests.map((name) => `tests/${name}`),
    outdir: "build",
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
    sourcemap: "inline",
  });
} else {
  await build({
    ...common,
    entryPoints: { report: "src/main.ts" },
    outdir: "../crates/oomph-report/assets",
    format: "iife",
    platform: "browser",
    target: ["es2022"],
    minify: true,
    charset: "ascii",
    legalComments: "none",
    banner: { js: licences() },
  });
}
