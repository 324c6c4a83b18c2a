import { defineConfig } from "vite";

// Paths are relative, so that the page works below any path at which it is mounted.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/dray/serve/ui",
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    target: "es2022",
  },
});
