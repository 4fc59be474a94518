import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

/** What the first page's script may be, in bytes as they are sent. */
const SCRIPT_MAX = 120_000;

/** Leaves a packed twin beside each file: the program sends that and packs nothing itself. */
function packed(): Plugin {
  return {
    name: "packed",
    apply: "build",
    closeBundle() {
      let script = 0;
      const pack = (folder: string) => {
        for (const entry of readdirSync(folder, { withFileTypes: true })) {
          const path = join(folder, entry.name);
          if (entry.isDirectory()) pack(path);
          else if (/\.(js|css|html|svg)$/.test(entry.name)) {
            const bytes = gzipSync(readFileSync(path), { level: 9 });
            writeFileSync(`${path}.gz`, bytes);
            if (entry.name.endsWith(".js")) script += bytes.length;
          }
        }
      };
      pack(join(import.meta.dirname, "dist"));
      console.log(`the script is ${script} bytes gzip`);
      if (script > SCRIPT_MAX) throw new Error(`the script is ${script} bytes gzip, and may be ${SCRIPT_MAX}`);
    },
  };
}

/** What the development server asks: a service that runs already. */
const service = process.env.FATIA ?? "http://127.0.0.1:8080";

export default defineConfig({
  plugins: [react(), packed()],
  build: {
    // The policy of the pages allows no script that stands in a page, and data only for pictures.
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    target: "es2023",
  },
  server: { proxy: { "/api": service, "/healthz": service, "/docs": service } },
});
